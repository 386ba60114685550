"""`tf.linalg`, by `jax.numpy`."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import keras

from millrace_ipu.tensorflow.dispatch import op, real_name
from millrace_ipu.tensorflow.norms import LINALG as _NORMS
from millrace_ipu.tensorflow.ops import OPS as _OPS
from millrace_ipu.tensorflow.values import TensorLike

ops: Any = keras.ops


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


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "band_part": _band_part,
    "cholesky": lambda input: ops.cholesky(input),
    "det": lambda input: ops.det(input),
    "diag": _diag,
    "diag_part": lambda input: jnp.diagonal(jnp.asarray(input), axis1=-2, axis2=-1),
    "inv": lambda input: ops.inv(input),
    "matvec": lambda a, b: ops.squeeze(ops.matmul(a, ops.expand_dims(b, -1)), -1),
    "set_diag": _set_diag,
    "solve": lambda matrix, rhs: ops.solve(matrix, rhs),
    "trace": lambda x: ops.trace(x, axis1=-2, axis2=-1),
}
OPS = {
    **{
        name: op(f"linalg.{name}", function, keeps_names=True)
        for name, function in _FUNCTIONS.items()
    },
    **_NORMS,
    "global_norm": _OPS["linalg.global_norm"],
    "matmul": _OPS["matmul"],
}
globals().update(OPS)


def __getattr__(name: str) -> Any:
    return real_name(f"linalg.{name}")
