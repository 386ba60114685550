"""Private JAX and Keras: arrays with a method `numpy`, and data that makes its own adapter.

`let_arrays_be_numpy`  programs written for TensorFlow ask a result for `.numpy()`; `jax.Array` is
                       abstract, and no public call adds a method to the class behind it.
`ARRAY_KINDS`          the classes behind `jax.Array`: of arrays with numbers, and of traced ones.
`let_data_adapt`       Keras knows data sets by a list of types; nothing public adds one to it.
"""

from collections.abc import Callable

import jax
import numpy as np
from jax._src.array import ArrayImpl
from jax._src.core import Tracer

from millrace.extend import DataAdapter, replace
from millrace_ipu._compat.patch_table import ARRAY_NUMPY, DATA_ADAPTER

ARRAY_KINDS = (ArrayImpl, Tracer)


def let_arrays_be_numpy() -> None:
    """Gives arrays a method `numpy`, unless they have one."""

    def wrapper(original: object) -> Callable[[jax.Array], np.ndarray]:
        def numpy(array: jax.Array) -> np.ndarray:
            """Returns the array in host memory."""
            return np.asarray(array)

        del original
        return numpy

    if not hasattr(ARRAY_NUMPY.owner(), ARRAY_NUMPY.attribute):  # type: ignore[misc]
        replace(ARRAY_NUMPY, wrapper)


def let_data_adapt() -> None:
    """Lets data with a method `as_data_adapter` provide its own data adapter.

    The method is given the arguments of `fit`: `y`, `sample_weight` and `class_weight`.
    """

    def wrapper(original: Callable[..., DataAdapter]) -> Callable[..., DataAdapter]:
        def get_data_adapter(x: object, *args: object, **kwargs: object) -> DataAdapter:
            adapt = getattr(x, "as_data_adapter", None)
            if adapt is None:
                return original(x, *args, **kwargs)
            return adapt(
                y=kwargs.get("y"),
                sample_weight=kwargs.get("sample_weight"),
                class_weight=kwargs.get("class_weight"),
            )

        return get_data_adapter

    replace(DATA_ADAPTER, wrapper)
