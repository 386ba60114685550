"""Operations of `tf` on the rows of arrays, and arrays of numbers that follow a rule.

map_fn, vectorized_map, scan, foldl        functions of the rows
linspace, meshgrid, sequence_mask          arrays by rule
switch_case, recompute_grad                functions that run by an index, or once more
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import keras
from jax.typing import DTypeLike

from millrace.errors import OptionError
from millrace.extend import is_traced
from millrace_ipu.tensorflow.dispatch import op
from millrace_ipu.tensorflow.dtypes import as_dtype
from millrace_ipu.tensorflow.values import Tensor, TensorLike

ops: Any = keras.ops


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


def _expected(x: TensorLike, shape: Any) -> Any:
    given = tuple(x.shape)  # type: ignore[union-attr]
    fits = len(given) == len(shape) and all(
        m is None or n is None or n == m for n, m in zip(given, shape, strict=True)
    )
    if not fits:
        raise OptionError(f"tf.ensure_shape: the shape is {given}, and {tuple(shape)} is expected.")
    return x


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "ensure_shape": _expected,
    "foldl": _foldl,
    "identity_n": lambda input: [ops.convert_to_tensor(each) for each in input],
    "linspace": lambda start, stop, num, axis=0: ops.linspace(start, stop, num, axis=axis),
    "map_fn": _map_fn,
    "meshgrid": lambda *args, indexing="xy": list(ops.meshgrid(*args, indexing=indexing)),
    "scan": _scan,
    "searchsorted": lambda sorted_sequence, values, side="left": ops.searchsorted(
        sorted_sequence, values, side
    ),
    "sequence_mask": _sequence_mask,
    "switch_case": _switch_case,
    "vectorized_map": _vectorized_map,
}
OPS: dict[str, Callable[..., Any]] = {
    **{name: op(name, function, keeps_names=True) for name, function in _FUNCTIONS.items()},
    "is_tensor": lambda x: isinstance(x, Tensor | keras.KerasTensor | keras.Variable),
    "recompute_grad": jax.checkpoint,
}
