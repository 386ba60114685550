"""The public API: the strategy, callbacks, layers, optimizers and own loops."""
