"""Optimizers around another one that IPU programs ask for by name."""
