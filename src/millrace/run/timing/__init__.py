"""Measures when devices ran what they were told to run: no vendor's tool, on every backend."""
