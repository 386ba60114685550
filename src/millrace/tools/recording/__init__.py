"""What a strategy writes about its runs: records of loops, of executables and of traces."""
