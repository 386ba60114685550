"""Operations of `tf` that pick, put and repeat elements of arrays, on `keras.ops` and `jax.numpy`.

gather_nd, tensor_scatter_nd_add, scatter_nd       indices in their last axis
sequence_mask, boolean_mask, meshgrid, roll        as in TensorFlow 2
map_fn, vectorized_map, scan, foldl                functions of the elements
custom_gradient, recompute_grad                    jax.custom_gradient, jax.checkpoint
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
from jax.typing import DTypeLike

from millrace._compat.jax_tracing import is_traced
from millrace.errors import OptionError
from millrace.tensorflow.dispatch import op
from millrace.tensorflow.dtypes import as_dtype
from millrace.tensorflow.values import ShapeLike, TensorLike

ops: Any = keras.ops


def _places(indices: TensorLike) -> tuple[Any, ...]:
    return tuple(jnp.moveaxis(jnp.asarray(indices), -1, 0))


def _gather_nd(params: TensorLike, indices: TensorLike, batch_dims: int = 0) -> Any:
    def gather(array: Any, places: Any) -> Any:
        return array[_places(places)]

    for _axis in range(batch_dims):
        gather = jax.vmap(gather)
    return gather(jnp.asarray(params), jnp.asarray(indices))


def _scattered(how: str) -> Callable[..., Any]:
    def scatter(tensor: TensorLike, indices: TensorLike, updates: TensorLike) -> Any:
        array = jnp.asarray(tensor)
        return getattr(array.at[_places(indices)], how)(jnp.asarray(updates, array.dtype))

    return scatter


def _scatter_nd(indices: TensorLike, updates: TensorLike, shape: ShapeLike) -> Any:
    values = jnp.asarray(updates)
    return jnp.zeros(tuple(shape), values.dtype).at[_places(indices)].add(values)


def _boolean_mask(tensor: TensorLike, mask: TensorLike, axis: int | None = None) -> Any:
    array, chosen, first = jnp.asarray(tensor), jnp.asarray(mask, bool), axis or 0
    if is_traced(chosen):
        raise OptionError(
            "tf.boolean_mask in a compiled function: the shape of its result depends on values. "
            "Write keras.ops.where(mask, x, 0), and divide sums by the sum of the mask."
        )
    return array[(slice(None),) * first + (np.asarray(chosen),)]


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


def _clip_by_norm(t: Any, clip_norm: Any, axes: Any = None) -> Any:
    norm = ops.sqrt(ops.sum(ops.square(t), axis=axes, keepdims=True))
    return t * clip_norm / ops.maximum(norm, clip_norm)


def _map_fn(fn: Callable[[Any], Any], elems: Any, *_: object, **__: object) -> Any:
    return jax.lax.map(fn, jax.tree.map(jnp.asarray, elems))


def _vectorized_map(fn: Callable[[Any], Any], elems: Any, **_: object) -> Any:
    return jax.vmap(fn)(jax.tree.map(jnp.asarray, elems))


def _scan(
    fn: Callable[[Any, Any], Any], elems: Any, initializer: Any = None, reverse: bool = False
) -> Any:
    rows = jax.tree.map(jnp.asarray, elems)
    start = initializer
    if initializer is None:
        start = jax.tree.map(lambda row: row[-1 if reverse else 0], rows)
        rest = jax.tree.map(lambda row: row[:-1] if reverse else row[1:], rows)
    else:
        start, rest = jax.tree.map(jnp.asarray, initializer), rows

    def step(carry: Any, row: Any) -> tuple[Any, Any]:
        carry = jax.tree.map(lambda new, old: jnp.asarray(new, old.dtype), fn(carry, row), carry)
        return carry, carry

    _, results = jax.lax.scan(step, start, rest, reverse=reverse)
    if initializer is not None:
        return results

    def joined(one: Any, others: Any) -> Any:
        return jnp.concatenate((others, one[None]) if reverse else (one[None], others))

    return jax.tree.map(joined, start, results)


def _foldl(fn: Callable[[Any, Any], Any], elems: Any, initializer: Any = None) -> Any:
    return jax.tree.map(lambda rows: rows[-1], _scan(fn, elems, initializer))


def _switch_case(
    branch_index: TensorLike,
    branch_fns: Sequence[Callable[[], Any]],
    default: Callable[[], Any] | None = None,
) -> Any:
    branches = [*branch_fns, *([default] if default else [])]
    index = jnp.asarray(branch_index)
    is_one = (index >= 0) & (index < len(branch_fns))
    return jax.lax.switch(jnp.where(is_one, index, len(branches) - 1), branches)


def _norm(
    tensor: TensorLike, ord: Any = "euclidean", axis: Any = None, keepdims: bool = False
) -> Any:
    order = 2 if ord == "euclidean" else ord
    array = jnp.asarray(tensor) if not isinstance(tensor, keras.KerasTensor) else tensor
    axes = tuple(axis) if isinstance(axis, list) else axis
    if axes is None:  # over all elements, as a vector
        axes, array = (0, ops.reshape(array, (-1,)) if not keepdims else array)
    return ops.norm(array, order, axes, keepdims)


def _custom_gradient(f: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return jax.custom_gradient(lambda *values: f(*values, **kwargs))(*args)

    return call


@contextlib.contextmanager
def control_dependencies(control_inputs: object) -> Iterator[None]:
    """Has no effect: operations run in their order."""
    del control_inputs
    yield


def _nothing(*_: object, **__: object) -> None:
    return None


def _expected(x: TensorLike, shape: Any) -> Any:
    given = tuple(x.shape)  # type: ignore[union-attr]
    fits = len(given) == len(shape) and all(
        m is None or n is None or n == m for n, m in zip(given, shape, strict=True)
    )
    if not fits:
        raise OptionError(f"tf.ensure_shape: the shape is {given}, and {tuple(shape)} is expected.")
    return x


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "boolean_mask": _boolean_mask,
    "broadcast_to": lambda input, shape: ops.broadcast_to(input, tuple(shape)),
    "clip_by_norm": _clip_by_norm,
    "einsum": lambda equation, *inputs, **_: ops.einsum(equation.replace(" ", ""), *inputs),
    "ensure_shape": _expected,
    "foldl": _foldl,
    "gather_nd": _gather_nd,
    "identity_n": lambda input: [ops.convert_to_tensor(each) for each in input],
    "linspace": lambda start, stop, num, axis=0: ops.linspace(start, stop, num, axis=axis),
    "map_fn": _map_fn,
    "meshgrid": lambda *args, indexing="xy": list(ops.meshgrid(*args, indexing=indexing)),
    "norm": _norm,
    "roll": lambda input, shift, axis: ops.roll(input, shift, axis),
    "scan": _scan,
    "scatter_nd": _scatter_nd,
    "searchsorted": lambda sorted_sequence, values, side="left": ops.searchsorted(
        sorted_sequence, values, side
    ),
    "sequence_mask": _sequence_mask,
    "switch_case": _switch_case,
    "tensor_scatter_nd_add": _scattered("add"),
    "tensor_scatter_nd_max": _scattered("max"),
    "tensor_scatter_nd_min": _scattered("min"),
    "tensor_scatter_nd_sub": _scattered("subtract"),
    "tensor_scatter_nd_update": _scattered("set"),
    "tensordot": lambda a, b, axes: ops.tensordot(a, b, axes),
    "vectorized_map": _vectorized_map,
}
OPS: dict[str, Callable[..., Any]] = {
    **{name: op(name, function, keeps_names=True) for name, function in _FUNCTIONS.items()},
    "control_dependencies": control_dependencies,
    "custom_gradient": _custom_gradient,
    "group": _nothing,
    "is_tensor": lambda x: isinstance(x, jax.Array | keras.KerasTensor | keras.Variable),
    "no_op": _nothing,
    "recompute_grad": jax.checkpoint,
}
