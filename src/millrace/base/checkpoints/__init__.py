"""Checkpoints on disk: written whole or not at all, verified, listed, removed.

With the states that they contain of objects and of the generators of random numbers.
"""
