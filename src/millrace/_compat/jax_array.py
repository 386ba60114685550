"""Private JAX: the class of arrays. Checked on jax 0.10.0, 0.10.2 and 0.12.0.1.

`let_arrays_be_numpy`   programs written for TensorFlow ask a result for `.numpy()`; `jax.Array` is
                  abstract, and nothing public adds a method to what is behind it.
"""

from typing import Any

import jax
import numpy as np

from millrace._compat.patch_table import ARRAY_NUMPY
from millrace._compat.patches import replace

__all__ = ["let_arrays_be_numpy"]


def let_arrays_be_numpy() -> None:
    """Gives arrays a method `numpy`, unless they have one."""

    def wrapper(original: Any) -> Any:
        def numpy(array: jax.Array) -> np.ndarray:
            """Returns the array in host memory."""
            return np.asarray(array)

        del original
        return numpy

    if not hasattr(ARRAY_NUMPY.owner(), ARRAY_NUMPY.attribute):  # type: ignore[misc]
        replace(ARRAY_NUMPY, wrapper)
