"""Private Keras: the statistics of a `BatchNormalization` over the batches of several replicas.

`moments_over`   while it is open, the layers of a traced step have the mean and the variance of the
                 batches of all replicas along an axis of the mesh, in place of their own.

With `n` values of a replica and `e` that Keras adds to their number (0 without a mask):

    mean     = sum((n + e) mean_r) / (sum(n) + e)
    variance = sum((n + e) variance_r + n (mean_r - mean)^2 + 2 e mean_r (mean_r - mean))
               / (sum(n) + e)

Each is taken about its own mean first, so that nothing large is subtracted from something large.
Source: Chan, Golub, LeVeque: Updating formulae and a pairwise algorithm for computing sample
variances, 1979.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import keras
from jax import lax

from millrace._compat.patch_table import BATCH_MOMENTS
from millrace._compat.patches import held, replace
from millrace.base.threads.scoped_value import ScopedValue


class _Replicas(NamedTuple):
    axis: str
    active: jax.Array  # whether this one has a batch


_replicas = ScopedValue[_Replicas | None](None)


@contextmanager
def moments_over(axis: str, active: jax.Array) -> Iterator[None]:
    """Takes statistics over all replicas, in steps that this thread traces in the block.

    Args:
        axis: of the mesh.
        active: whether the replica that runs the code has a batch; bool scalar.
    """
    with held(), _replicas.bound_to(_Replicas(axis, active)):
        replace(BATCH_MOMENTS, _shared)
        yield


def _shared(original: Callable[..., Any]) -> Callable[..., Any]:
    def _moments(
        self: keras.layers.BatchNormalization, inputs: jax.Array, mask: jax.Array | None
    ) -> Any:
        mean, variance = original(self, inputs, mask)
        replicas = _replicas.get()
        if replicas is None:
            return mean, variance
        axis = self.axis % len(inputs.shape)
        reduced = tuple(k for k in range(len(inputs.shape)) if k != axis)
        epsilon = 0.0
        if mask is None:
            number = math.prod(inputs.shape[k] for k in reduced)
            count = jnp.full(mean.shape, number, mean.dtype)
        else:
            epsilon = keras.config.epsilon()
            valid = jnp.broadcast_to(jnp.expand_dims(mask, -1), inputs.shape)
            count = jnp.squeeze(valid.astype(bool).astype(mean.dtype).sum(reduced))
        return _of_all(replicas, mean, variance, count, epsilon)

    return _moments


def _of_all(
    replicas: _Replicas, mean: jax.Array, variance: jax.Array, count: jax.Array, epsilon: float
) -> tuple[jax.Array, jax.Array]:
    values = (mean, variance, count, count + epsilon)
    mean, variance, count, weight = (
        jnp.where(replicas.active, value, jnp.zeros_like(value)) for value in values
    )
    total = lax.psum(count, replicas.axis) + epsilon
    center = lax.psum(weight * mean, replicas.axis) / total
    distance = mean - center
    squares = weight * variance + count * distance**2 + 2 * epsilon * mean * distance
    spread = lax.psum(squares, replicas.axis) / total
    # The loss of a replica without a batch must not reach the gradients of the others.
    return (
        jnp.where(replicas.active, center, lax.stop_gradient(center)),
        jnp.where(replicas.active, spread, lax.stop_gradient(spread)),
    )
