"""Random operations: dropout, by `keras.random.dropout` or by a seed of two numbers."""

from collections.abc import Sequence
from typing import Any

import jax
import keras
import numpy as np

from millrace.errors import OptionError
from millrace_ipu.ipu.replacements import other_name as _other_name
from millrace_ipu.tensorflow.random import seed_or_generator


def dropout(
    x: Any,
    seed: Any = None,
    rate: float = 0.5,
    noise_shape: Sequence[int] | None = None,
    name: str | None = None,
    seed_modifier: int = 1,
) -> Any:
    """Returns `x` with some elements set to 0, and the others divided by `1 - rate`.

    Args:
        x: an array.
        seed: two whole numbers; None draws from a generator of the process.
        rate: the share of elements that are dropped, from 0 to below 1.
        noise_shape: the shape of the decisions, which broadcasts to that of `x`.
        name: ignored.
        seed_modifier: another whole number, which makes another seed.

    Raises:
        OptionError: for a rate or a seed that is none.
    """
    del name
    if not 0 <= rate < 1:
        raise OptionError(f"rate must be at least 0 and below 1. Received: {rate!r}.")
    if seed is None:
        return keras.random.dropout(x, rate, noise_shape, seed_or_generator(None))
    if np.shape(seed) != (2,):
        raise OptionError(
            f"seed takes two whole numbers. Received: {seed!r}. Set seed=[1, 2], for example."
        )
    key = jax.random.key(seed_modifier)
    for part in (seed[0], seed[1]):
        key = jax.random.fold_in(key, part)
    kept = jax.random.bernoulli(key, 1 - rate, tuple(noise_shape or x.shape))
    return keras.ops.where(kept, x / (1 - rate), keras.ops.zeros_like(x))


def __getattr__(name: str) -> Any:
    return _other_name(__name__, name)
