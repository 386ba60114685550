"""A batch from a description, without data."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from millrace._compat.keras_data import get_data_adapter
from millrace.base.pytrees import Array, ArrayTree, Spec
from millrace.errors import OptionError

ShapeAndDtype: TypeAlias = tuple[Sequence[int], DTypeLike]
BatchDescription: TypeAlias = (
    "Array | Spec | ShapeAndDtype | Sequence[BatchDescription] | Mapping[Any, BatchDescription]"
)


def batch_of_zeros(description: BatchDescription) -> ArrayTree:
    """Returns a batch of zeros as Keras's data adapter would give it to `fit`.

    Args:
        description: x, or a tuple of x, y and sample weights, each an array, a
            `jax.ShapeDtypeStruct`, a pair of shape and dtype, or a tree of these.

    Raises:
        OptionError: for any other value.
    """
    arguments: tuple[object, ...] = (description,)
    if isinstance(description, tuple) and not _is_pair(description):
        arguments = description
    if not 1 <= len(arguments) <= 3:
        raise OptionError(
            "batch_spec is one batch: (x, y) or (x, y, sample_weight). Received a tuple of "
            f"{len(arguments)}. Several inputs of a model are a list or a dict within x."
        )
    zeros = [jax.tree.map(_zeros, each, is_leaf=_is_pair) for each in arguments]
    leaves = jax.tree.leaves(zeros)
    if not leaves or not all(leaf.ndim for leaf in leaves):
        raise OptionError(
            "batch_spec has no leaf with rows. Set it to arrays of one batch, such as "
            "(x[:32], y[:32]), or to ((32, 784), 'float32') for each."
        )
    names = dict(zip(("x", "y", "sample_weight"), zeros, strict=False))
    adapter = get_data_adapter(**names, batch_size=len(leaves[0]), class_weight=None)
    return next(iter(adapter.get_jax_iterator()))


def _is_pair(value: object) -> TypeGuard[tuple[Sequence[int], str | type | np.dtype]]:
    """Whether a value is a shape and a dtype."""
    return (
        isinstance(value, tuple)
        and len(value) == 2
        and isinstance(value[0], tuple | list)
        and all(isinstance(length, int) for length in value[0])
        and isinstance(value[1], str | type | np.dtype)
    )


def _zeros(leaf: object) -> np.ndarray:
    # Zeros that are only read take no memory.
    if _is_pair(leaf):
        return np.zeros(leaf[0], jnp.dtype(leaf[1]))
    shape, dtype = getattr(leaf, "shape", None), getattr(leaf, "dtype", None)
    if shape is not None and dtype is not None:
        return np.zeros(shape, dtype)
    raise OptionError(
        "batch_spec is made of arrays, jax.ShapeDtypeStructs, or pairs of shape and dtype. "
        f"Received: {leaf!r}. Set it to ((32, 784), 'float32'), say."
    )
