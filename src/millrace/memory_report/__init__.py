"""What training a model will need on each device, and what to change where that does not fit."""
