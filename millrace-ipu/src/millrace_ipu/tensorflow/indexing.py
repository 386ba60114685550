"""Operations of `tf` that read, write and add elements by their indices.

tensor_scatter_nd_add(x, indices, updates)     indices [..., k] of the first k axes of x
math.unsorted_segment_mean(x, ids, n)          rows of x with equal ids
boolean_mask(x, mask)                          outside of compiled functions, whose shapes are fixed
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

from millrace.errors import LoopError
from millrace.extend import is_traced, is_tracing
from millrace_ipu.tensorflow.dispatch import op
from millrace_ipu.tensorflow.values import ShapeLike, TensorLike, shape_of

ops: Any = keras.ops  # whose annotations allow None for all results


def _gather_nd(params: TensorLike, indices: TensorLike, batch_dims: int = 0) -> Any:
    if batch_dims:
        return jax.vmap(lambda p, i: _gather_nd(p, i, batch_dims - 1))(params, indices)
    places = jnp.moveaxis(jnp.asarray(indices), -1, 0)  # type: ignore[arg-type]
    return jnp.asarray(params)[tuple(places)]  # type: ignore[arg-type]


def _scatter_nd(indices: TensorLike, updates: TensorLike, shape: ShapeLike) -> Any:
    return ops.scatter(_tensor(indices), _tensor(updates), shape_of(shape))


def _scatter(name: str) -> Callable[..., Any]:
    """Returns the operation that combines elements and updates by a method of `x.at[]`."""

    def scatter(tensor: TensorLike, indices: TensorLike, updates: TensorLike) -> Any:
        places = jnp.moveaxis(jnp.asarray(indices), -1, 0)  # type: ignore[arg-type]
        array = jnp.asarray(tensor)  # type: ignore[arg-type]
        return getattr(array.at[tuple(places)], name)(updates)

    return scatter


def _boolean_mask(tensor: TensorLike, mask: TensorLike, axis: int | None = None) -> Any:
    if any(map(is_traced, (tensor, mask))):
        raise LoopError(
            "tf.boolean_mask() has as many rows as its mask has true elements, and the shapes of a "
            "compiled function are fixed. Write tf.where(mask, x, 0), or call it outside."
        )
    before = (slice(None),) * (axis or 0)
    return jnp.asarray(tensor)[(*before, np.asarray(mask))]  # type: ignore[arg-type]


def _segments(function: Callable[..., jax.Array]) -> Callable[..., Any]:
    def combine(data: TensorLike, segment_ids: TensorLike, num_segments: int | None = None) -> Any:
        return function(_tensor(data), _tensor(segment_ids), num_segments)

    return combine


def _segment_mean(rows: jax.Array, ids: jax.Array, number: int | None) -> jax.Array:
    counts = jax.ops.segment_sum(jnp.ones(ids.shape, rows.dtype), ids, number)
    counts = jnp.maximum(counts, 1).reshape(counts.shape + (1,) * (rows.ndim - ids.ndim))
    return jax.ops.segment_sum(rows, ids, number) / counts


def _tensor(value: TensorLike) -> Any:
    return ops.convert_to_tensor(value)


def _embedding_lookup(params: TensorLike, ids: TensorLike) -> Any:
    return ops.take(params, ids, axis=0)


def split_by(name: str, traced: Callable[..., Any]) -> Callable[..., list[Any]]:
    """Returns a function that splits arrays as `numpy.split`, `numpy.dsplit` or one like them.

    Outside of compiled functions it splits in host memory, since a program would have an operation
    for each part: of thousands, where filters are looked at one by one, compiling takes minutes.

    Args:
        name: of NumPy's function.
        traced: does the same in compiled functions.
    """

    def split(array: Any, *args: Any, **kwargs: Any) -> list[Any]:
        array = array.value if isinstance(array, keras.Variable) else array
        if is_tracing() or isinstance(array, keras.KerasTensor):
            return list(traced(array, *args, **kwargs))
        return list(map(jnp.asarray, getattr(np, name)(np.asarray(array), *args, **kwargs)))

    return split


def _roll(input: TensorLike, shift: int | Sequence[int], axis: int | Sequence[int]) -> Any:
    return ops.roll(input, shift, axis)


OPS: dict[str, Callable[..., Any]] = {
    "boolean_mask": op("boolean_mask", _boolean_mask, keeps_names=True),
    "gather_nd": op("gather_nd", _gather_nd, keeps_names=True),
    "roll": op("roll", _roll, keeps_names=True),
    "scatter_nd": op("scatter_nd", _scatter_nd, keeps_names=True),
    **{
        f"tensor_scatter_nd_{name}": op(
            f"tensor_scatter_nd_{name}", _scatter(method), keeps_names=True
        )
        for name, method in {
            "add": "add",
            "max": "max",
            "min": "min",
            "sub": "subtract",
            "update": "set",
        }.items()
    },
}
_SEGMENTS: dict[str, Callable[..., Any]] = {
    "segment_max": _segments(jax.ops.segment_max),
    "segment_mean": _segments(_segment_mean),
    "unsorted_segment_max": _segments(jax.ops.segment_max),
    "unsorted_segment_mean": _segments(_segment_mean),
    "unsorted_segment_min": _segments(jax.ops.segment_min),
    "unsorted_segment_prod": _segments(jax.ops.segment_prod),
}
MATH = {name: op(f"math.{name}", f, keeps_names=True) for name, f in _SEGMENTS.items()}
NN = {"embedding_lookup": op("nn.embedding_lookup", _embedding_lookup, keeps_names=True)}
