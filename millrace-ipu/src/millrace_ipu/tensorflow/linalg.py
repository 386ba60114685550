"""`tf.linalg`: a table of `arrays.py`."""

from typing import Any

from millrace_ipu.tensorflow.arrays import LINALG as _LINALG
from millrace_ipu.tensorflow.dispatch import real_name
from millrace_ipu.tensorflow.ops import OPS as _OPS

globals().update(_LINALG, matmul=_OPS["matmul"], global_norm=_OPS["linalg.global_norm"])


def __getattr__(name: str) -> Any:
    return real_name(f"linalg.{name}")
