"""What identifies a program, field by field, and what differs between two of them."""
