"""From a program to an executable: compiled, cached, explained, exported."""
