"""How much memory training needs on each device, known before anything runs."""
