"""Writes the records of a loop while it runs."""
