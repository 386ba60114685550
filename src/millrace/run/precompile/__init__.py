"""Compiles what a loop would run, and runs nothing."""
