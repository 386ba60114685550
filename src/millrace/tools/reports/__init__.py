"""The page that shows a run, made from its records."""
