"""Values of one thread, and tables that threads share."""
