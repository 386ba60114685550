"""`tf.math`: a table of `keras.ops`. Most of its names are at the top level of `tf`, too."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import keras
from jax.typing import DTypeLike

from millrace_ipu.tensorflow.dispatch import op, real_name
from millrace_ipu.tensorflow.dtypes import as_dtype
from millrace_ipu.tensorflow.indexing import MATH as _INDEXING
from millrace_ipu.tensorflow.norms import MATH as _NORMS
from millrace_ipu.tensorflow.replacements import KERAS_NAMES as KERAS_NAMES
from millrace_ipu.tensorflow.values import TensorLike

ops: Any = keras.ops  # whose annotations allow None for all results

_SAME = (
    "abs add ceil cos cosh cumsum divide equal exp floor greater greater_equal less less_equal log "
    "log1p logical_and logical_not logical_or logical_xor maximum minimum mod multiply not_equal "
    "round rsqrt sigmoid sign sin sinh sqrt square subtract tan tanh erf expm1 argsort sort "
    "floor_divide divide_no_nan log_softmax softplus real"
)
_ARCS = {"acos": "arccos", "acosh": "arccosh", "asin": "arcsin", "asinh": "arcsinh",
         "atan": "arctan", "atan2": "arctan2", "atanh": "arctanh"}  # fmt: skip


def _index_of(function: Callable[..., object]) -> Callable[..., object]:
    def find(x: TensorLike, axis: int = 0, output_type: DTypeLike = "int32") -> object:
        return ops.cast(function(x, axis), as_dtype(output_type).name)

    return find


def _top_k(x: TensorLike, k: int = 1, sorted: bool = True) -> object:
    return ops.top_k(x, k, sorted)


def _segment_sum(
    data: TensorLike, segment_ids: TensorLike, num_segments: int | None = None
) -> object:
    return ops.segment_sum(data, segment_ids, num_segments)


def _multiply_no_nan(x: TensorLike, y: TensorLike) -> object:
    return ops.where(ops.equal(y, 0), ops.zeros_like(x), ops.multiply(x, y))


def _count_nonzero(
    input: TensorLike,
    axis: int | Sequence[int] | None = None,
    keepdims: bool = False,
    dtype: DTypeLike = "int32",
) -> object:
    return ops.cast(
        ops.sum(ops.cast(ops.not_equal(input, 0), "int32"), axis, keepdims), as_dtype(dtype).name
    )


def _accumulate(inputs: Sequence[jax.Array]) -> jax.Array:
    return sum(inputs[1:], inputs[0])


OPS: dict[str, Any] = {
    **{name: op(f"math.{name}", getattr(ops, name)) for name in _SAME.split()},
    **{name: op(f"math.{name}", getattr(ops, other)) for name, other in KERAS_NAMES.items()},
    **{new: op(f"math.{new}", getattr(ops, old)) for new, old in _ARCS.items()},
    "count_nonzero": op("math.count_nonzero", _count_nonzero, keeps_names=True),
    "cumprod": op("math.cumprod", lambda x, axis=0: ops.cumprod(x, axis)),
    "floormod": op("math.floormod", ops.mod),
    "in_top_k": op(
        "math.in_top_k",
        lambda targets, predictions, k: ops.in_top_k(targets, predictions, k),
        keeps_names=True,
    ),
    "lgamma": op("math.lgamma", jax.scipy.special.gammaln),
    "log_sigmoid": op("math.log_sigmoid", ops.log_sigmoid),
    "multiply_no_nan": op("math.multiply_no_nan", _multiply_no_nan, keeps_names=True),
    "xlogy": op("math.xlogy", jax.scipy.special.xlogy),
    "add_n": op("math.add_n", _accumulate, keeps_names=True),
    "argmax": op("math.argmax", _index_of(ops.argmax)),
    "argmin": op("math.argmin", _index_of(ops.argmin)),
    "negative": op("math.negative", ops.negative),
    "squared_difference": op("math.squared_difference", lambda x, y: ops.square(x - y)),
    "segment_sum": op("math.segment_sum", _segment_sum, keeps_names=True),
    "top_k": op("math.top_k", _top_k),
    "unsorted_segment_sum": op("math.unsorted_segment_sum", _segment_sum, keeps_names=True),
    **_INDEXING,
    **_NORMS,
}
globals().update(OPS)


def __getattr__(name: str) -> Any:
    return real_name(f"math.{name}")
