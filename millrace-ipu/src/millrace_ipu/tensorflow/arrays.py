"""Operations of `tf` on rows, indices and whole axes of arrays: four tables, by their packages.

tensor_scatter_nd_add(x, indices, updates)     indices [..., k] of the first k axes of x
math.unsorted_segment_mean(x, ids, n)          rows of x with equal ids
boolean_mask(x, mask)                          outside of compiled functions, whose shapes are fixed
norm, l2_normalize, einsum                     whole axes
sequence_mask, linspace                        arrays by rule
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
from jax.typing import DTypeLike

from millrace.errors import LoopError, OptionError
from millrace.extend import is_traced, is_tracing
from millrace_ipu.tensorflow.dispatch import operations
from millrace_ipu.tensorflow.dtypes import as_dtype
from millrace_ipu.tensorflow.values import Tensor, TensorLike, shape_of

ops: Any = keras.ops  # whose annotations allow None for all results

Axis = int | Sequence[int] | None


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


def _gather_nd(params: TensorLike, indices: TensorLike, batch_dims: int = 0) -> Any:
    if batch_dims:
        return jax.vmap(lambda p, i: _gather_nd(p, i, batch_dims - 1))(params, indices)
    places = jnp.moveaxis(jnp.asarray(indices), -1, 0)  # type: ignore[arg-type]
    return jnp.asarray(params)[tuple(places)]  # type: ignore[arg-type]


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
        rows, ids = ops.convert_to_tensor(data), ops.convert_to_tensor(segment_ids)
        return function(rows, ids, num_segments)

    return combine


def _segment_mean(rows: jax.Array, ids: jax.Array, number: int | None) -> jax.Array:
    counts = jax.ops.segment_sum(jnp.ones(ids.shape, rows.dtype), ids, number)
    counts = jnp.maximum(counts, 1).reshape(counts.shape + (1,) * (rows.ndim - ids.ndim))
    return jax.ops.segment_sum(rows, ids, number) / counts


def _sequence_mask(
    lengths: TensorLike, maxlen: int | None = None, dtype: DTypeLike = "bool"
) -> Any:
    ends = jnp.asarray(lengths)
    if maxlen is None and is_traced(ends):
        raise OptionError(
            "tf.sequence_mask in a compiled function needs maxlen=, the number of columns."
        )
    columns = int(ends.max()) if maxlen is None else int(maxlen)
    return (jnp.arange(columns) < ends[..., None]).astype(as_dtype(dtype))


def _norm(
    tensor: TensorLike, ord: str | float = "euclidean", axis: Axis = None, keepdims: bool = False
) -> Any:
    """Returns the norm of vectors; with `axis=None` that of all elements, as one vector."""
    values = ops.convert_to_tensor(tensor)
    if axis is None:
        norm = ops.norm(ops.ravel(values), 2 if ord == "euclidean" else ord)
        return ops.reshape(norm, (1,) * len(values.shape)) if keepdims else norm
    kind = None if ord == "euclidean" else ord
    return ops.norm(values, kind, tuple(axis) if isinstance(axis, list) else axis, keepdims)


def _euclidean(input_tensor: TensorLike, axis: Axis = None, keepdims: bool = False) -> Any:
    return ops.sqrt(ops.sum(ops.square(input_tensor), axis, keepdims))


def _l2_normalize(x: TensorLike, axis: Axis = None, epsilon: float = 1e-12) -> Any:
    squares = ops.sum(ops.square(x), axis, keepdims=True)
    return x * ops.rsqrt(ops.maximum(squares, epsilon))


def _clip_by_norm(t: Any, clip_norm: float | jax.Array, axes: Axis = None) -> Any:
    """Returns `t` scaled so that its norm is at most `clip_norm`."""
    norm = _euclidean(t, axes, keepdims=True)
    return t * clip_norm / ops.maximum(norm, clip_norm)


def _band_part(input: TensorLike, num_lower: int, num_upper: int) -> Any:
    array = jnp.asarray(input)
    rows = jnp.arange(array.shape[-2])[:, None]
    columns = jnp.arange(array.shape[-1])
    kept = (num_lower < 0) | (rows - columns <= num_lower)
    kept &= (num_upper < 0) | (columns - rows <= num_upper)
    return jnp.where(kept, array, jnp.zeros((), array.dtype))


def _diag(diagonal: TensorLike) -> Any:
    values = jnp.asarray(diagonal)
    return values[..., None] * jnp.eye(values.shape[-1], dtype=values.dtype)


def _set_diag(input: TensorLike, diagonal: TensorLike) -> Any:
    array = jnp.asarray(input)
    places = jnp.arange(min(array.shape[-2:]))
    return array.at[..., places, places].set(diagonal)


_SCATTERS = {"add": "add", "max": "max", "min": "min", "sub": "subtract", "update": "set"}
OPS: dict[str, Callable[..., Any]] = {
    **operations(
        "",
        {
            "boolean_mask": _boolean_mask,
            "broadcast_to": lambda input, shape: ops.broadcast_to(input, shape_of(shape)),
            "clip_by_norm": _clip_by_norm,
            "einsum": lambda equation, *inputs, **_: ops.einsum(equation, *inputs),
            "gather_nd": _gather_nd,
            "linspace": lambda start, stop, num, axis=0: ops.linspace(start, stop, num, axis=axis),
            "norm": _norm,
            "roll": lambda input, shift, axis: ops.roll(input, shift, axis),
            "scatter_nd": lambda indices, updates, shape: ops.scatter(
                ops.convert_to_tensor(indices), ops.convert_to_tensor(updates), shape_of(shape)
            ),
            "sequence_mask": _sequence_mask,
            **{f"tensor_scatter_nd_{name}": _scatter(method) for name, method in _SCATTERS.items()},
        },
    ),
    "is_tensor": lambda x: isinstance(x, Tensor | keras.KerasTensor | keras.Variable),
}
MATH = operations(
    "math",
    {
        "l2_normalize": _l2_normalize,
        "segment_sum": _segments(jax.ops.segment_sum),
        "unsorted_segment_max": _segments(jax.ops.segment_max),
        "unsorted_segment_mean": _segments(_segment_mean),
        "unsorted_segment_sum": _segments(jax.ops.segment_sum),
    },
)
LINALG = {
    **operations(
        "linalg",
        {
            "band_part": _band_part,
            "diag": _diag,
            "set_diag": _set_diag,
            "trace": lambda x: ops.trace(x, axis1=-2, axis2=-1),
            **{name: getattr(ops, name) for name in ("cholesky", "det", "inv", "solve")},
        },
    ),
    **{name: OPS[name] for name in ("einsum", "norm")},
    "l2_normalize": MATH["l2_normalize"],
}
