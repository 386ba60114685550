"""The tutorial's module `outfeed_optimizer`.

OutfeedOptimizer       -> millrace.optimizers.OutfeedOptimizer
OutfeedOptimizerMode   -> millrace.optimizers.OutfeedOptimizerMode
"""

from millrace.optimizers.outfeed import OutfeedOptimizer as OutfeedOptimizer
from millrace.optimizers.outfeed import OutfeedOptimizerMode as OutfeedOptimizerMode
