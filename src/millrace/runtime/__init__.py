"""Calls executables in the right order."""
