"""Values and functions as in Keras 2: `x.get_shape().as_list()`, `to_categorical(y, n, dtype=)`."""

import math
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from millrace.extend import add, replace
from millrace_ipu._compat.arrays_and_data import ARRAY_KINDS
from millrace_ipu._compat.patch_table import KERAS2_CALLS


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


def mend_values() -> None:
    """Lets tensors, variables and utilities be used as in Keras 2."""
    for kind in (keras.KerasTensor, keras.Variable, *ARRAY_KINDS):
        add(KERAS2_CALLS, kind, "get_shape", _shape)
    add(KERAS2_CALLS, keras.Variable, "read_value", _value)
    replace(KERAS2_CALLS, _with_dtype, keras.utils, "to_categorical")


def _shape(self: Any) -> OldShape:
    return OldShape(self.shape)


def _value(self: keras.Variable) -> Any:
    return self.value


def _with_dtype(original: Callable[..., Any]) -> Callable[..., Any]:
    def to_categorical(
        y: Any, num_classes: int | None = None, dtype: Any = None, **kwargs: Any
    ) -> np.ndarray:
        encoded = original(y, num_classes, **kwargs)
        return encoded if dtype is None else encoded.astype(np.dtype(dtype))

    return to_categorical
