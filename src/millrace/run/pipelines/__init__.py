"""Pipelines: the layers of a model as stages on devices of their own, run by a schedule."""
