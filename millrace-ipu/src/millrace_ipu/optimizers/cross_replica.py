"""An optimizer that applies the mean of the replicas' gradients.

    replica 0   gradient 1.0  ┐
    replica 1   gradient 3.0  ┴ mean 2.0 -> the wrapped optimizer, on each of them

So variables that are equal on all replicas at the start stay equal.
"""

from collections.abc import Sequence
from typing import Any

import keras

from millrace.extend import WrappingOptimizer, cross_replica_mean, largest
from millrace_ipu.pytrees import Gradient


@keras.saving.register_keras_serializable(package="millrace")
class CrossReplicaOptimizer(WrappingOptimizer):
    """Averages gradients over the replicas of a compiled function, and applies them.

    Models that a strategy runs as replicas do not need it: their gradients are reduced anyway.

    Args:
        wrapped_optimizer: a Keras optimizer.
        name: of this optimizer.

    Raises:
        OptionError: if `wrapped_optimizer` is not an optimizer.
    """

    takes_means = True

    def __init__(
        self, wrapped_optimizer: keras.optimizers.Optimizer, name: str = "CrossReplicaOptimizer"
    ):
        super().__init__(wrapped_optimizer, name)

    def gradients_to_apply(
        self, gradients: Sequence[Gradient], variables: Sequence[keras.Variable] | None
    ) -> list[Gradient]:
        """Returns the mean of the replicas' gradients, which are exchanged all at once.

        Of the values with which Keras overwrites a variable it is the largest.
        """
        new: list[Any] = list(gradients)
        overwrites = [getattr(each, "overwrite_with_gradient", False) for each in variables or new]
        reduced = [k for k, gradient in enumerate(new) if gradient is not None]
        averaged = [k for k in reduced if not overwrites[k]]
        means = cross_replica_mean([new[k] for k in averaged])
        for k in reduced:
            new[k] = largest(new[k]) if overwrites[k] else means.pop(0)
        return new
