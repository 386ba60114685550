"""The tutorial's module `outfeed_optimizer`.

OutfeedOptimizer       -> millrace.optimizers.OutfeedOptimizer
OutfeedOptimizerMode   -> millrace.optimizers.OutfeedOptimizerMode
"""

from millrace.optimizers import OutfeedOptimizer as OutfeedOptimizer
from millrace.optimizers import OutfeedOptimizerMode as OutfeedOptimizerMode
