"""Groups of channels, of which each is brought to mean 0 and variance 1 over a row's positions.

    6 channels, 2 groups, strided           0 1 0 1 0 1
    6 channels, 2 groups, not strided       0 0 0 1 1 1

The normalization is that of Wu and He 2018, arXiv 1803.08494; a group for each channel is that of
Ulyanov et al. 2016, arXiv 1607.08022.
"""

from typing import Any

import keras


def normalize_groups(x: Any, groups: int, strided: bool, epsilon: float) -> Any:
    """Returns an array normalized.

    Args:
        x: with rows on the first axis and channels on the last.
        groups: how many there are; a divisor of the channels.
        strided: whether channel `c` is in group `c % groups`, or neighbours are together.
        epsilon: added to variances.
    """
    ops = keras.ops
    shape: tuple[Any, ...] = tuple(x.shape)
    each = shape[-1] // groups
    cut = (each, groups) if strided else (groups, each)
    grouped: Any = ops.reshape(x, (-1, *shape[1:-1], *cut))
    axes = [*range(1, len(shape) - 1), len(shape) - (1 if strided else 0)]
    moments: Any = ops.moments(grouped, axes=axes, keepdims=True)
    mean, variance = moments
    grouped = (grouped - mean) * ops.rsqrt(variance + epsilon)
    return ops.reshape(grouped, (-1, *shape[1:]))
