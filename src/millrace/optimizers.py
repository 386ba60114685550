"""Optimizers for models that a strategy runs."""

from millrace.api.optimizers.outfeed_optimizer import OutfeedOptimizer as OutfeedOptimizer
from millrace.api.optimizers.outfeed_optimizer import OutfeedOptimizerMode as OutfeedOptimizerMode
