"""Private JAX: the class of arrays. Checked on jax 0.10.0, 0.10.2 and 0.12.0.1.

`let_arrays_be_numpy`   programs written for TensorFlow ask a result for `.numpy()`; `jax.Array` is
                  abstract, and nothing public adds a method to what is behind it.
"""

import jax
import numpy as np
from jax._src.array import ArrayImpl

__all__ = ["let_arrays_be_numpy"]


def let_arrays_be_numpy() -> None:
    """Gives arrays a method `numpy`, unless they have one."""
    if not hasattr(ArrayImpl, "numpy"):
        ArrayImpl.numpy = _numpy  # type: ignore[attr-defined]


def _numpy(array: jax.Array) -> np.ndarray:
    """Returns the array in host memory."""
    return np.asarray(array)
