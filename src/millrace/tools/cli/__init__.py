"""The command `millrace`: names and arguments, no behaviour."""
