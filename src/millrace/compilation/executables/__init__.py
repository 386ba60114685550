"""Compilation: programs -> executables. No other package compiles a user's program."""
