"""Operations of `tf` that combine whole axes: norms, products and shapes that broadcast."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import keras

from millrace_ipu.tensorflow.dispatch import op
from millrace_ipu.tensorflow.values import ShapeLike, TensorLike, shape_of

ops: Any = keras.ops  # whose annotations allow None for all results

Axis = int | Sequence[int] | None


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


def _broadcast_to(input: TensorLike, shape: ShapeLike) -> Any:
    return ops.broadcast_to(input, shape_of(shape))


def _einsum(equation: str, *inputs: TensorLike, **_: object) -> Any:
    return ops.einsum(equation, *inputs)


def _tensordot(a: TensorLike, b: TensorLike, axes: int | Sequence[Sequence[int]]) -> Any:
    return ops.tensordot(a, b, axes)


_NORM = op("norm", _norm, keeps_names=True)
_NORMALIZE = op("math.l2_normalize", _l2_normalize, keeps_names=True)
_EINSUM = op("einsum", _einsum, keeps_names=True)
OPS: dict[str, Callable[..., Any]] = {
    "broadcast_to": op("broadcast_to", _broadcast_to, keeps_names=True),
    "clip_by_norm": op("clip_by_norm", _clip_by_norm, keeps_names=True),
    "einsum": _EINSUM,
    "norm": _NORM,
    "tensordot": op("tensordot", _tensordot, keeps_names=True),
}
MATH = {
    "l2_normalize": _NORMALIZE,
    "reduce_euclidean_norm": op("math.reduce_euclidean_norm", _euclidean, keeps_names=True),
}
NN = {"l2_normalize": _NORMALIZE}
LINALG = {"einsum": _EINSUM, "l2_normalize": _NORMALIZE, "norm": _NORM}
