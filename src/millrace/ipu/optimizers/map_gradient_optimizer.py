"""Gradients through a function.

MapGradientOptimizer(opt, function) -> millrace.optimizers.mapping.MappingOptimizer(opt, function)

The function is called where gradients are applied or accumulated: what `compute_gradients` returns
has not been through it.
"""

from collections.abc import Callable
from typing import Any

import keras

from millrace.ipu.optimizers.ipu_optimizer import Minimizing
from millrace.optimizers.mapping import MappingOptimizer


@keras.saving.register_keras_serializable(package="millrace.ipu")
class MapGradientOptimizer(Minimizing, MappingOptimizer):
    """Applies `gradient_mapping_function(gradient, variable)`.

    Args:
        wrapped_optimizer: a Keras optimizer.
        gradient_mapping_function: returns the gradient that is used.
        name: of this one.
    """

    def __init__(
        self,
        wrapped_optimizer: keras.optimizers.Optimizer,
        gradient_mapping_function: Callable[[Any, Any], Any],
        name: str = "MapGradientOptimizer",
    ):
        MappingOptimizer.__init__(self, wrapped_optimizer, gradient_mapping_function, name)
