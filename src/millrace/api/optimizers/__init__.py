"""Optimizers for models that a strategy runs."""
