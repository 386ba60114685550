"""The dtypes of `tf`, as NumPy has them: `tf.float32 == "float32"`, `tf.float32.name`."""

from typing import Any

import jax.numpy as jnp
import numpy as np

float16 = half = np.dtype("float16")
float32 = np.dtype("float32")
float64 = double = np.dtype("float64")
bfloat16 = np.dtype(jnp.bfloat16)
int8, int16, int32, int64 = (np.dtype(f"int{bits}") for bits in (8, 16, 32, 64))
uint8, uint16, uint32, uint64 = (np.dtype(f"uint{bits}") for bits in (8, 16, 32, 64))
bool = np.dtype("bool")
complex64 = np.dtype("complex64")
string = np.dtype("str")


def as_dtype(value: Any) -> np.dtype:
    """Returns a dtype for a dtype, or for the name of one."""
    return bfloat16 if value == "bfloat16" else np.dtype(value)
