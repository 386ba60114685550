"""Runs programs that were written for the IPU, and says what of them will not carry over."""
