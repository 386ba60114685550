"""Executables written for other processes, and found by them."""
