"""`tf.math`: a table of `keras.ops`. Most of its names are at the top level of `tf`, too."""

from collections.abc import Callable
from typing import Any

import keras
from jax.typing import DTypeLike

from millrace_ipu.tensorflow.arrays import MATH as _ARRAYS
from millrace_ipu.tensorflow.dispatch import operations, real_name
from millrace_ipu.tensorflow.dtypes import as_dtype
from millrace_ipu.tensorflow.replacements import KERAS_NAMES as KERAS_NAMES
from millrace_ipu.tensorflow.values import TensorLike

ops: Any = keras.ops  # whose annotations allow None for all results

_SAME = (
    "abs add argsort ceil cos cosh cumsum divide divide_no_nan equal erf exp expm1 floor "
    "floor_divide greater greater_equal less less_equal log log1p log_sigmoid log_softmax "
    "logical_and logical_not logical_or logical_xor maximum minimum mod multiply negative "
    "not_equal real round rsqrt sigmoid sign sin sinh softplus sort sqrt square subtract tan tanh"
)
_ARCS = {"acos": "arccos", "acosh": "arccosh", "asin": "arcsin", "asinh": "arcsinh",
         "atan": "arctan", "atan2": "arctan2", "atanh": "arctanh"}  # fmt: skip


def _index_of(function: Callable[..., object]) -> Callable[..., object]:
    def find(x: TensorLike, axis: int = 0, output_type: DTypeLike = "int32") -> object:
        return ops.cast(function(x, axis), as_dtype(output_type).name)

    return find


OPS: dict[str, Any] = {
    **operations(
        "math",
        {
            **{name: getattr(ops, name) for name in _SAME.split()},
            **{name: getattr(ops, other) for name, other in {**KERAS_NAMES, **_ARCS}.items()},
            "add_n": lambda inputs: sum(inputs[1:], inputs[0]),
            "argmax": _index_of(ops.argmax),
            "argmin": _index_of(ops.argmin),
            "cumprod": lambda x, axis=0: ops.cumprod(x, axis),
            "in_top_k": lambda targets, predictions, k: ops.in_top_k(targets, predictions, k),
            "squared_difference": lambda x, y: ops.square(x - y),
            "top_k": lambda x, k=1, sorted=True: ops.top_k(x, k, sorted),
        },
    ),
    **_ARRAYS,
}
globals().update(OPS)


def __getattr__(name: str) -> Any:
    return real_name(f"math.{name}")
