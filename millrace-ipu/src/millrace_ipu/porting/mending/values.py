"""Values and functions as in Keras 2: `x.get_shape().as_list()`, `to_categorical(y, n, dtype=)`."""

import math
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from millrace_ipu._compat.arrays_and_data import ARRAY_KINDS
from millrace_ipu.porting.mending.calls import added, around


class OldShape(tuple[int | None, ...]):
    """A shape with the methods that TensorFlow's have."""

    __slots__ = ()

    def as_list(self) -> list[int | None]:
        """Returns the sizes as a list."""
        return list(self)

    def num_elements(self) -> int | None:
        """Returns the number of elements; None where a size is not known."""
        return None if None in self else math.prod(size or 0 for size in self)

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self)

    ndims = rank


def _shape(self: Any) -> OldShape:
    return OldShape(self.shape)


for _kind in (keras.KerasTensor, keras.Variable, *ARRAY_KINDS):
    added(_kind, "get_shape")(_shape)


@added(keras.Variable, "read_value")
def _value(self: keras.Variable) -> Any:
    return self.value


@around(keras.utils, "to_categorical")
def _to_categorical(
    original: Callable[..., Any], *args: Any, dtype: Any = None, **kwargs: Any
) -> np.ndarray:
    encoded = original(*args[:2], **kwargs)
    dtype = args[2] if len(args) > 2 else dtype
    return encoded if dtype is None else encoded.astype(np.dtype(dtype))
