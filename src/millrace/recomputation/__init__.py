"""Values that backward computes again instead of keeping them: which, where, and within what budget."""
