"""Calls of Keras in the way of Keras 2, mended while a program runs."""
