"""What users call: the strategy, callbacks, layers, optimizers and own loops."""
