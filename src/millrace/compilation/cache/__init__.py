"""Executables on disk, so that another process need not compile them again."""
