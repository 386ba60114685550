"""A traced step cut into stages, and the programs of each stage."""
