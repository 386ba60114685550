"""What backward computes again instead of keeping it: which values, and within what budget."""
