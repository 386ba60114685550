"""A batch that stands for those of a data set which nobody has looked at."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from millrace._compat.keras_data import get_data_adapter
from millrace.errors import OptionError


def batch_of_zeros(given: Any) -> Any:
    """Returns a batch of zeros as Keras's data adapter would give it to `fit`.

    Args:
        given: x, or a tuple of x, y and sample weights, each an array, a `jax.ShapeDtypeStruct`, a
            pair of shape and dtype, or a tree of these.

    Raises:
        OptionError: if it is none of these.
    """
    parts = given if isinstance(given, tuple) and not _is_pair(given) else (given,)
    if not 1 <= len(parts) <= 3:
        raise OptionError(
            "batch_spec is one batch: (x, y) or (x, y, sample_weight). Received a tuple of "
            f"{len(parts)}. Several inputs of a model are a list or a dict within x."
        )
    zeros = [jax.tree.map(_zeros, part, is_leaf=_is_pair) for part in parts]
    leaves = jax.tree.leaves(zeros)
    if not leaves or not all(leaf.ndim for leaf in leaves):
        raise OptionError(
            "batch_spec has no leaf with rows. Set it to arrays of one batch, such as "
            "(x[:32], y[:32]), or to ((32, 784), 'float32') for each."
        )
    names = dict(zip(("x", "y", "sample_weight"), zeros, strict=False))
    adapter = get_data_adapter(**names, batch_size=len(leaves[0]), class_weight=None)
    return next(iter(adapter.get_jax_iterator()))


def _is_pair(value: Any) -> bool:
    """Whether a value is a shape and a dtype."""
    return (
        isinstance(value, tuple)
        and len(value) == 2
        and isinstance(value[0], tuple | list)
        and all(isinstance(length, int) for length in value[0])
        and isinstance(value[1], str | type | np.dtype)
    )


def _zeros(leaf: Any) -> Any:
    # Zeros that nobody writes to take no memory.
    if _is_pair(leaf):
        return np.zeros(leaf[0], jnp.dtype(leaf[1]))
    if hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
        return np.zeros(leaf.shape, leaf.dtype)
    raise OptionError(
        "batch_spec is made of arrays, jax.ShapeDtypeStructs, or pairs of shape and dtype. "
        f"Received: {leaf!r}. Set it to ((32, 784), 'float32'), say."
    )
