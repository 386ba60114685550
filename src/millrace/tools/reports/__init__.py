"""What a run was: one page to look at, made of its records."""
