"""A traced step, cut into stages -> the programs of each stage."""
