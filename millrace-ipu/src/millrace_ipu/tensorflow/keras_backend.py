"""The functions that `keras.backend` had in Keras 2, by `keras.ops`.

K.mean, K.clip, K.dot, ...    with the arguments and results that they had
K.get_value, K.set_value      values of variables as NumPy arrays

Those that `keras.ops` has with the same arguments are in the table of new names of `porting`.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
from jax.typing import ArrayLike, DTypeLike

from millrace_ipu.tensorflow.random import seed_or_generator
from millrace_ipu.tensorflow.values import ShapeLike, TensorLike, shape_of

ops: Any = keras.ops  # whose annotations allow None for all results

_SAME = "argmax argmin cumprod cumsum expand_dims round"


def _float(dtype: DTypeLike | None) -> str:
    return keras.backend.floatx() if dtype is None else np.dtype(dtype).name


def _mean(x: TensorLike, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Any:
    array: Any = ops.convert_to_tensor(x)
    if str(array.dtype) == "bool":
        array = ops.cast(array, keras.backend.floatx())
    return ops.mean(array, axis, keepdims)


def _dot(x: TensorLike, y: TensorLike) -> Any:
    return ops.tensordot(x, y, [[len(x.shape) - 1], [max(len(y.shape) - 2, 0)]])  # type: ignore[union-attr]


def _batch_dot(x: Any, y: Any, axes: int | Sequence[int] | None = None) -> Any:
    ranks = len(x.shape), len(y.shape)
    if axes is None:
        axes = (ranks[0] - 1, ranks[1] - 1 if ranks[1] == 2 else ranks[1] - 2)
    pair = (axes, axes) if isinstance(axes, int) else tuple(axes)
    result = _contract(x, y, [a % rank for a, rank in zip(pair, ranks, strict=True)])
    return ops.expand_dims(result, -1) if len(result.shape) == 1 else result


def _contract(x: Any, y: Any, axes: Sequence[int]) -> Any:
    """Returns the products of the rows of two batches, each summed over one axis."""
    left = ["b", *(chr(ord("c") + i) for i in range(1, len(x.shape)))]
    right = ["b", *(chr(ord("n") + i) for i in range(1, len(y.shape)))]
    left[axes[0]] = right[axes[1]] = "z"
    kept = [letter for letter in left + right[1:] if letter != "z"]
    return ops.einsum(f"{''.join(left)},{''.join(right)}->{''.join(kept)}", x, y)


def _clip(x: TensorLike, min_value: TensorLike | None, max_value: TensorLike | None) -> Any:
    low = -np.inf if min_value is None else min_value
    return ops.clip(x, low, np.inf if max_value is None else max_value)


def _shape(x: object) -> tuple[int | None, ...] | None:
    return tuple(getattr(x, "shape", np.shape(x)))  # type: ignore[arg-type]


def _variable(
    value: ArrayLike,
    dtype: DTypeLike | None = None,
    name: str | None = None,
    constraint: Any = None,
) -> keras.Variable:
    name = name and name.replace("/", "_")
    variable = keras.Variable(value, dtype=_float(dtype), name=name)
    variable.constraint = constraint
    return variable


def _constant(
    value: ArrayLike, dtype: DTypeLike | None = None, shape: ShapeLike | None = None, name: str = ""
) -> jax.Array:
    array = jnp.asarray(value, _float(dtype))
    return array if shape is None else jnp.broadcast_to(array, tuple(shape))


def _value(x: Any) -> Any:
    return np.asarray(x.value if isinstance(x, keras.Variable) else x)


def _switch(condition: TensorLike, then_expression: Any, else_expression: Any) -> Any:
    if callable(then_expression):
        return ops.cond(condition, then_expression, else_expression)
    return ops.where(condition, then_expression, else_expression)


def _filled(fill: Callable[..., Any]) -> Callable[..., Any]:
    def make(shape: ShapeLike, dtype: DTypeLike | None = None, name: str | None = None) -> Any:
        return fill(shape, _float(dtype))

    return make


def _like(fill: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, dtype=None, name=None: fill(x, None if dtype is None else _float(dtype))


def _random(draw: Callable[..., Any]) -> Callable[..., Any]:
    def make(
        shape: ShapeLike, first: float = 0.0, second: float = 1.0, dtype: Any = None, **options: Any
    ) -> Any:
        first = options.get("mean", options.get("minval", first))
        second = options.get("stddev", options.get("maxval", second))
        seed = seed_or_generator(options.get("seed"))
        return draw(shape_of(shape), first, second, _float(dtype), seed)

    return make


OPS: dict[str, Callable[..., Any]] = {
    **{name: getattr(ops, name) for name in _SAME.split()},
    "batch_dot": _batch_dot,
    "batch_set_value": lambda tuples: [variable.assign(value) for variable, value in tuples],
    "binary_crossentropy": lambda target, output, from_logits=False: ops.binary_crossentropy(
        target, output, from_logits
    ),
    "cast": lambda x, dtype: ops.cast(x, np.dtype(dtype).name),
    "cast_to_floatx": lambda x: np.asarray(x, keras.backend.floatx()),
    "categorical_crossentropy": lambda target, output, from_logits=False, axis=-1: (
        ops.categorical_crossentropy(target, output, from_logits, axis)
    ),
    "clip": _clip,
    "concatenate": lambda tensors, axis=-1: ops.concatenate(tensors, axis),
    "constant": _constant,
    "dot": _dot,
    "dropout": lambda x, level, noise_shape=None, seed=None: keras.random.dropout(
        x, level, noise_shape, seed_or_generator(seed)
    ),
    "dtype": lambda x: str(np.dtype(x.dtype)),
    "eval": _value,
    "flatten": ops.ravel,
    "gather": lambda reference, indices: ops.take(reference, indices, 0),
    "get_value": _value,
    "hard_sigmoid": lambda x: ops.clip(0.2 * x + 0.5, 0.0, 1.0),
    "int_shape": _shape,
    "l2_normalize": lambda x, axis=None: ops.normalize(x, -1 if axis is None else axis),
    "mean": _mean,
    "one_hot": lambda indices, num_classes: ops.one_hot(indices, num_classes),
    "ones": _filled(ops.ones),
    "ones_like": _like(ops.ones_like),
    "random_normal": _random(keras.random.normal),
    "random_uniform": _random(keras.random.uniform),
    "relu": lambda x, alpha=0.0, max_value=None, threshold=0.0: keras.activations.relu(
        x, alpha, max_value, threshold
    ),
    "repeat": lambda x, n: ops.repeat(ops.expand_dims(x, 1), n, 1),
    "set_value": lambda x, value: x.assign(value),
    "sparse_categorical_crossentropy": lambda target, output, from_logits=False, axis=-1: (
        ops.sparse_categorical_crossentropy(target, output, from_logits, axis)
    ),
    "switch": _switch,
    "update": lambda x, new_x: x.assign(new_x),
    "update_add": lambda x, increment: x.assign_add(increment),
    "update_sub": lambda x, decrement: x.assign_sub(decrement),
    "variable": _variable,
    "zeros": _filled(ops.zeros),
    "zeros_like": _like(ops.zeros_like),
}
