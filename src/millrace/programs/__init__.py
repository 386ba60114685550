"""Computations as pure functions: steps, replicas, recomputation, taps, feeds."""
