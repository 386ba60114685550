"""Pipelines of functions, in place of the layers of a model."""
