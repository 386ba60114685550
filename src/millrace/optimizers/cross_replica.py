"""An optimizer that applies the mean of the replicas' gradients.

    replica 0   gradient 1.0  ┐
    replica 1   gradient 3.0  ┴ mean 2.0 -> the wrapped optimizer, on each of them

Replicas that begin with equal variables so keep them equal.
"""

from collections.abc import Sequence
from typing import Any

import keras

from millrace.loops.replication import cross_replica_mean
from millrace.optimizers.wrapping import WrappingOptimizer


@keras.saving.register_keras_serializable(package="millrace")
class CrossReplicaOptimizer(WrappingOptimizer):
    """Averages gradients over the replicas of a compiled function, and applies them.

    Models that a strategy runs as replicas need none: their gradients are exchanged anyway.

    Args:
        wrapped_optimizer: a Keras optimizer.
        name: of the optimizer.

    Raises:
        OptionError: if it is something else.
    """

    def __init__(
        self, wrapped_optimizer: keras.optimizers.Optimizer, name: str = "CrossReplicaOptimizer"
    ):
        super().__init__(wrapped_optimizer, name)

    def see(self, gradients: Sequence[Any], variables: Sequence[Any] | None) -> list[Any]:
        """Averages gradients that are about to be applied."""
        return [None if g is None else cross_replica_mean(g) for g in gradients]
