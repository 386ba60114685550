"""The memory of compiled programs, operation by operation, and of the devices that run them."""
