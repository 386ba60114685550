"""The commands for IPU programs."""
