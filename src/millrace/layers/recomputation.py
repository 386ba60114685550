"""`RecomputationCheckpoint`: what passes it is kept for backward, what lies between is not.

    x = keras.layers.Dense(64)(inputs)
    x = millrace.layers.RecomputationCheckpoint()(x)
    outputs = keras.layers.Dense(1)(x)
    model.set_recomputation_options()

The function `recomputation_checkpoint` does the same in the `call` of a layer or a model.
"""

from typing import Any

import keras

from millrace.recomputation.segments import mark_boundary


@keras.saving.register_keras_serializable(package="millrace")
class RecomputationCheckpoint(keras.layers.Layer):
    """Marks values that backward keeps; between two marks it runs forward again.

    It acts once `set_recomputation_options()` has turned recomputation on, in training. Otherwise,
    and in all that is computed, it is not there. It takes one tensor or any structure of tensors,
    returns the same, and has no weights. The idea is that of Chen et al. 2016, arXiv 1604.06174.
    """

    def __init__(self, **kwargs: Any):
        # Values pass as they are: without this, a model of mixed precision would cast them.
        super().__init__(**{"autocast": False, **kwargs})
        self.supports_masking = True
        self.built = True

    def call(self, inputs: Any) -> Any:
        """Returns `inputs`."""
        return recomputation_checkpoint(inputs)


def recomputation_checkpoint(tensors: Any) -> Any:
    """Returns `tensors` unchanged; `RecomputationCheckpoint` is the layer of this function.

    Args:
        tensors: an array or any structure of arrays, in the `call` of a layer or a model.
    """
    return mark_boundary(tensors)
