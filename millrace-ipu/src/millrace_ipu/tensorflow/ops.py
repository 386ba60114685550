"""Operations at the top level of `tf`: a table of `keras.ops`, and the operations that differ.

Names that are missing here are in `tf.math`, or raise an error that says what to write.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
from jax.typing import DTypeLike

from millrace import while_loop
from millrace.errors import OptionError
from millrace.extend import context_of, current_scope, is_traced, is_tracing
from millrace_ipu.tensorflow.arrays import split_by
from millrace_ipu.tensorflow.conversion.convert import recognize
from millrace_ipu.tensorflow.dispatch import operations
from millrace_ipu.tensorflow.dtypes import as_dtype
from millrace_ipu.tensorflow.values import HostArray, ShapeLike, TensorLike, TensorValue, shape_of

ops: Any = keras.ops  # whose annotations allow None for all results


def _cast(x: TensorLike, dtype: DTypeLike) -> Any:
    target = as_dtype(dtype)
    if isinstance(x, np.ndarray | np.generic):  # in a data set, say: it stays on the host
        return np.asarray(x).astype(target).view(HostArray)
    if isinstance(x, int) and target.kind in "iu":
        return _tensor(x, target)
    return ops.cast(x, target.name)


def _constant(
    value: TensorLike, dtype: DTypeLike | None = None, shape: ShapeLike | None = None
) -> Any:
    array = _tensor(value, dtype)
    if shape is None:
        return array
    size = int(np.prod(shape))
    return jnp.broadcast_to(array, shape) if array.size == 1 != size else array.reshape(shape)


def _tensor(
    value: TensorLike | str | bytes,
    dtype: DTypeLike | None = None,
    dtype_hint: DTypeLike | None = None,
) -> Any:
    if isinstance(value, str | bytes):
        return np.asarray(value).view(HostArray)
    if isinstance(value, keras.Variable):
        value = value.value
    if isinstance(value, keras.KerasTensor):
        return value if dtype is None else ops.cast(value, as_dtype(dtype).name)
    if is_tracing() and _may_be_shape(value, dtype):
        return np.asarray(value, "int32" if dtype is None else as_dtype(dtype)).view(HostArray)
    array = jnp.asarray(value, None if dtype is None else as_dtype(dtype))
    # No weak type: a Python number in its place would otherwise compile another program.
    return jax.lax.convert_element_type(array, array.dtype)


def _may_be_shape(value: object, dtype: DTypeLike | None) -> bool:
    """Whether a value stays on the host in a trace, since programs use such ones as shapes."""
    if dtype is not None and as_dtype(dtype).kind not in "iu":
        return False
    numbers = value if isinstance(value, list | tuple) else [value]
    return 0 < len(numbers) <= _AXES and all(type(number) is int for number in numbers)


_AXES = 8  # the largest number of axes that a shape is taken to have


def _range(
    start: float | jax.Array,
    limit: float | jax.Array | None = None,
    delta: float | jax.Array = 1,
    dtype: DTypeLike | None = None,
) -> jax.Array:
    start, limit = (0, start) if limit is None else (start, limit)
    return jnp.arange(start, limit, delta, None if dtype is None else as_dtype(dtype))


def _squeeze(x: TensorLike, axis: int | Sequence[int] | None = None) -> Any:
    return ops.squeeze(x, tuple(axis) if isinstance(axis, list) else axis)


def _matmul(
    a: TensorLike,
    b: TensorLike,
    transpose_a: bool = False,
    transpose_b: bool = False,
    **_: object,
) -> Any:
    a = ops.swapaxes(a, -1, -2) if transpose_a else a
    return ops.matmul(a, ops.swapaxes(b, -1, -2) if transpose_b else b)


def _one_hot(
    indices: TensorLike,
    depth: int,
    on_value: float | None = None,
    off_value: float | None = None,
    axis: int = -1,
    dtype: DTypeLike | None = None,
) -> Any:
    hot = ops.one_hot(indices, depth, axis=axis, dtype=as_dtype(dtype or "float32").name)
    if on_value is None and off_value is None:
        return hot
    on, off = 1 if on_value is None else on_value, 0 if off_value is None else off_value
    return hot * on + (1 - hot) * off


def _shape(input: TensorLike, out_type: DTypeLike = "int32") -> Any:
    shape = ops.shape(input)
    if None in shape:
        raise OptionError(
            f"tf.shape of a symbolic tensor of shape {tuple(shape)}: the size of axis "
            f"{shape.index(None)} is known only when data comes. Write -1 in its place in "
            "tf.reshape, call tf.shape in a layer, or give keras.Input a batch_size."
        )
    if isinstance(input, jax.Array) and not is_tracing():
        return jnp.asarray(shape, as_dtype(out_type))
    # Numbers, where a program is traced: `tf.reshape(x, [tf.shape(x)[0], -1])` needs them. A size
    # that Keras leaves open while it builds a layer is an object that stands for a number.
    is_open = any(not isinstance(size, int) for size in shape)
    return np.asarray(shape, object if is_open else as_dtype(out_type)).view(HostArray)


def _joined(function: Callable[..., Any], on_host: Callable[..., Any]) -> Callable[..., Any]:
    """Returns an operation on several values, which joins those of shapes on the host."""

    def join(values: Sequence[TensorLike], axis: int = 0) -> Any:
        leaves = jax.tree.leaves(values)
        if is_tracing() and all(isinstance(leaf, int | np.ndarray | np.generic) for leaf in leaves):
            return np.asarray(on_host(values, axis)).view(HostArray)
        return function(values, axis)

    return join


def _slice(x: Any, begin: Sequence[Any], size: Sequence[Any]) -> TensorValue:
    """Returns a part of an array; a size of -1 is all that is left of the dimension."""
    sizes = [
        x.shape[axis] - int(begin[axis]) if isinstance(n, int | np.integer) and n == -1 else n
        for axis, n in enumerate(size)
    ]
    return ops.slice(x, begin, sizes)


def _split(
    value: TensorLike, num_or_size_splits: int | Sequence[int], axis: int = 0
) -> list[TensorValue]:
    if isinstance(num_or_size_splits, int):
        return _parts_of(value, num_or_size_splits, axis)
    return _parts_of(value, list(np.cumsum(num_or_size_splits)[:-1]), axis)


def _unstack(value: TensorLike, num: int | None = None, axis: int = 0) -> list[TensorValue]:
    number = value.shape[axis] if num is None else num  # type: ignore[union-attr, index]
    return [ops.squeeze(part, axis) for part in _parts_of(value, number, axis)]


_parts_of = split_by("split", ops.split)


def _gather(
    params: TensorLike,
    indices: TensorLike,
    axis: int | None = None,
    batch_dims: int = 0,
    **_: object,
) -> Any:
    if not batch_dims:
        return ops.take(params, indices, axis or 0)

    def take(array: jax.Array, index: jax.Array) -> jax.Array:
        return jnp.take(array, index, 0 if axis is None else axis - batch_dims)

    for _axis in range(batch_dims):
        take = jax.vmap(take)
    return take(jnp.asarray(params), jnp.asarray(indices))


def _where(condition: TensorLike, x: TensorLike | None = None, y: TensorLike | None = None) -> Any:
    if x is None:
        return ops.stack(ops.nonzero(condition), axis=-1)
    return ops.where(condition, x, y)


def _pad(
    tensor: TensorLike, paddings: TensorLike, mode: str = "CONSTANT", constant_values: float = 0
) -> Any:
    options = {"constant_values": constant_values} if mode.upper() == "CONSTANT" else {}
    return ops.pad(tensor, paddings, mode.lower(), **options)


def _clip_by_global_norm(
    t_list: Sequence[jax.Array | None],
    clip_norm: float | jax.Array,
    use_norm: jax.Array | None = None,
) -> tuple[list[jax.Array | None], jax.Array]:
    norm = _global_norm(t_list) if use_norm is None else use_norm
    factor = clip_norm / ops.maximum(norm, clip_norm)
    return [None if t is None else t * factor for t in t_list], norm


def _global_norm(t_list: Sequence[TensorLike | None]) -> Any:
    return ops.sqrt(sum(ops.sum(ops.square(t)) for t in t_list if t is not None))


def _while_loop(
    cond: Callable[..., TensorLike],
    body: Callable[..., object],
    loop_vars: object,
    maximum_iterations: int | jax.Array | None = None,
    **_: object,
) -> Any:
    """Runs a loop; in a compiled function it also carries the variables that the body assigns."""
    if context_of(current_scope()) is None or not loop_vars:
        return ops.while_loop(cond, body, loop_vars, maximum_iterations)
    values = while_loop(cond, body, loop_vars, maximum_iterations=maximum_iterations)
    if not isinstance(loop_vars, list | tuple):
        return values
    values = values if len(loop_vars) > 1 else [values]  # one value comes as it is
    return tuple(values) if isinstance(loop_vars, tuple) else values


def _print(*values: object, sep: str | None = " ", end: str | None = "\n", **_: object) -> None:
    if any(map(is_traced, jax.tree.leaves(values))):
        jax.debug.print(" ".join(["{}"] * len(values)), *values)
    else:
        print(*values, sep=sep, end=end)


def _like(fill: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, dtype=None: fill(x, None if dtype is None else as_dtype(dtype).name)


OPS: dict[str, Callable[..., Any]] = {
    **operations(
        "",
        {
            "cast": _cast,
            "expand_dims": lambda x, axis: ops.expand_dims(x, axis),
            "eye": lambda n, m=None, dtype="float32": jnp.eye(n, m, dtype=as_dtype(dtype)),
            "identity": _tensor,
            "ones_like": _like(ops.ones_like),
            "print": _print,
            "rank": lambda x: len(ops.shape(x)),
            "repeat": lambda x, repeats, axis=None: ops.repeat(x, repeats, axis),
            "reshape": lambda x, shape: ops.reshape(x, shape_of(shape)),
            "reverse": lambda x, axis: ops.flip(x, axis),
            "size": lambda x: ops.size(x),
            "slice": _slice,
            "squeeze": _squeeze,
            "stop_gradient": lambda x: ops.stop_gradient(x),
            "tile": lambda x, multiples: ops.tile(x, shape_of(multiples)),
            "zeros_like": _like(ops.zeros_like),
            "clip_by_global_norm": _clip_by_global_norm,
            "clip_by_value": lambda t, clip_value_min, clip_value_max: ops.clip(
                t, clip_value_min, clip_value_max
            ),
            "concat": _joined(ops.concatenate, np.concatenate),
            "cond": lambda pred, true_fn, false_fn: ops.cond(pred, true_fn, false_fn),
            "constant": _constant,
            "convert_to_tensor": _tensor,
            "fill": lambda dims, value: jnp.full(shape_of(dims), _tensor(value)),
            "gather": _gather,
            "linalg.global_norm": _global_norm,
            "matmul": _matmul,
            "one_hot": _one_hot,
            "ones": lambda shape, dtype="float32": jnp.ones(shape_of(shape), as_dtype(dtype)),
            "pad": _pad,
            "range": _range,
            "shape": _shape,
            "split": _split,
            "stack": _joined(ops.stack, np.stack),
            "transpose": lambda a, perm=None: ops.transpose(a, perm),
            "unstack": _unstack,
            "where": _where,
            "while_loop": _while_loop,
            "zeros": lambda shape, dtype="float32": jnp.zeros(shape_of(shape), as_dtype(dtype)),
        },
    ),
}
recognize("range", OPS["range"])
