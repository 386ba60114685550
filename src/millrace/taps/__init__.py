"""Taps: named values that leave a compiled program, and the queues and listeners that get them."""
