"""What identifies a program, field by field, and why another one is compiled."""
