"""`RecomputationCheckpoint`: marks values to keep for backward; others are computed again.

    x = keras.layers.Dense(64)(inputs)
    x = millrace.layers.RecomputationCheckpoint()(x)
    outputs = keras.layers.Dense(1)(x)
    model.set_recomputation_options()

The function `recomputation_checkpoint` does the same in the `call` of a layer or a model.
"""

from typing import TypeVar

import keras

from millrace.programs.recomputation.boundaries import mark_boundary

MarkedTensors = TypeVar("MarkedTensors")


@keras.saving.register_keras_serializable(package="millrace")
class RecomputationCheckpoint(keras.layers.Layer):
    """Marks values to keep for backward, which runs forward again between two marks.

    It has an effect in training, after `set_recomputation_options()` has turned recomputation on,
    and never on results. It takes one tensor or any structure of tensors, returns the same, and
    has no weights. The idea is from Chen et al. 2016, arXiv 1604.06174.
    """

    def __init__(self, **kwargs: object):
        # In a model of mixed precision the layer would otherwise cast its inputs.
        super().__init__(**{"autocast": False, **kwargs})  # type: ignore[arg-type]
        self.supports_masking = True
        self.built = True

    def call(self, inputs: MarkedTensors) -> MarkedTensors:
        """Returns `inputs`, marked as the values that backward keeps."""
        return recomputation_checkpoint(inputs)


def recomputation_checkpoint(tensors: MarkedTensors) -> MarkedTensors:
    """Marks `tensors` as the layer `RecomputationCheckpoint` does, and returns them unchanged.

    Args:
        tensors: an array or any structure of arrays, in the `call` of a layer or a model.
    """
    return mark_boundary(tensors)
