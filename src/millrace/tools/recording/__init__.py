"""Writes the records of a strategy's runs: its loops, executables and traces."""
