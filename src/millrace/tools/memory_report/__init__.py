"""The memory that training needs on each device, and changes with which it would fit."""
