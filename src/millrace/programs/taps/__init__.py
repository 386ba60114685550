"""Taps: named values that leave a compiled program, and their queues and listeners."""
