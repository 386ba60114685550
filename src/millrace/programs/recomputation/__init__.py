"""Recomputation: segments that backward runs again to save memory, by boundaries or by budget."""
