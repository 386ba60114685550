"""Layers for models that a strategy runs."""
