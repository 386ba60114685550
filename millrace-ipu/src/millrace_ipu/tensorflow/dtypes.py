"""The dtypes of `tf`, as dtypes of NumPy: `tf.float32 == "float32"`, `tf.float32.name`."""

import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

DType = np.dtype
float16 = half = np.dtype("float16")
float32 = np.dtype("float32")
float64 = double = np.dtype("float64")
bfloat16 = np.dtype(jnp.bfloat16)
int8, int16, int32, int64 = (np.dtype(f"int{bits}") for bits in (8, 16, 32, 64))
uint8, uint16, uint32, uint64 = (np.dtype(f"uint{bits}") for bits in (8, 16, 32, 64))
bool = np.dtype("bool")
complex64 = np.dtype("complex64")
string = np.dtype("str")


def as_dtype(value: DTypeLike) -> np.dtype:
    """Returns the NumPy dtype for a dtype or its name."""
    return bfloat16 if value == "bfloat16" else np.dtype(value)
