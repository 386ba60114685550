"""Optimizers for models that a strategy runs."""

from millrace.optimizers.outfeed import OutfeedOptimizer as OutfeedOptimizer
from millrace.optimizers.outfeed import OutfeedOptimizerMode as OutfeedOptimizerMode
