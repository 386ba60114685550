"""The processes of one run: their numbers, their agreement on a program, and common failure."""
