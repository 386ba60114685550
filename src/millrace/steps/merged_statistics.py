"""Mean and variance of one big batch, from those of its micro-batches, and the way back.

With `n` values in a micro-batch and `e` that Keras adds to their number (0 without a mask):

    mean     = sum((n + e) mean_m) / (sum(n) + e)
    variance = sum((n + e) variance_m + n (mean_m - mean)^2 + 2 e mean_m (mean_m - mean))
               / (sum(n) + e)

Each is taken about its own mean first, so that nothing large is subtracted from something large.
Source: Chan, Golub, LeVeque: Updating formulae and a pairwise algorithm for computing sample
variances, 1979.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import jax
import jax.numpy as jnp

# Adds up each value over replicas.
AddUp: TypeAlias = Callable[[Sequence[jax.Array]], list[jax.Array]]


@dataclass(frozen=True, slots=True)
class MicroStatistics:
    """Statistics of micro-batches, `[micro-batches, ...]` each, and their number of values."""

    mean: jax.Array
    variance: jax.Array
    count: jax.Array  # 0 where a replica has no batch
    weight: jax.Array  # the same, and what Keras adds to it
    epsilon: float

    @classmethod
    def of(
        cls,
        mean: jax.Array,
        variance: jax.Array,
        count: jax.Array,
        active: jax.Array | None,
        epsilon: float,
    ) -> "MicroStatistics":
        """Takes statistics of micro-batches; where `active` is False there is no batch."""
        weight = count + epsilon
        if active is not None:
            there = active.reshape(-1, *[1] * (count.ndim - 1))
            count, weight, mean, variance = (
                jnp.where(there, value, jnp.zeros_like(value))
                for value in (count, weight, mean, variance)
            )
        return cls(mean, variance, count, weight, epsilon)

    def merged(self, add_up: AddUp) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Returns mean, variance and total weight of all micro-batches of all replicas."""
        total, mean = add_up([self.count.sum(0), (self.weight * self.mean).sum(0)])
        total = total + self.epsilon
        mean = mean / total
        distance = self.mean - mean
        squares = self.weight * self.variance + self.count * distance**2
        if self.epsilon:
            squares = squares + 2 * self.epsilon * self.mean * distance
        (variance,) = add_up([squares.sum(0)])
        return mean, variance / total, total

    def cotangents(
        self, merged: tuple[jax.Array, jax.Array, jax.Array], mean: jax.Array, variance: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Returns the cotangents of the micro-batches' means and variances.

        Args:
            merged: result of `merged`.
            mean: cotangent of the merged mean, of all replicas together.
            variance: cotangent of the merged variance.
        """
        center, _, total = merged
        share = self.weight / total
        distance = self.mean - center
        spread = self.count * distance
        if self.epsilon:
            mean = mean - variance * 2 * self.epsilon * center / total
            spread = spread + self.epsilon * (self.mean + distance)
        return share * mean + 2 * variance * spread / total, share * variance
