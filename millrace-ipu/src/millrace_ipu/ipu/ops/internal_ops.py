"""Operations for debugging: `print_tensor`, and those that chose where on a device a value is."""

import sys
from typing import Any

import jax
import keras
import numpy as np

from millrace_ipu.ipu.replacements import other_name as _other_name


def print_tensor(input: Any, name: str = "") -> Any:  # the name of the IPU's
    """Prints a value to stderr each time that the program computes it, and returns it.

    Args:
        input: an array, or a tensor of a Keras model.
        name: stands before the value.
    """
    if keras.utils.is_keras_tensor(input):
        return _Print(name)(input)
    _show(input, name)
    return input


def remap(x: Any, name: str | None = None) -> Any:
    """Returns `x`: there are no tiles to map it to."""
    return x


remap_deduce = remap


def __getattr__(name: str) -> Any:
    return _other_name(__name__, name)


class _Print(keras.Operation):
    """Prints a tensor of a functional model where it is computed."""

    def __init__(self, label: str):
        super().__init__()
        self.label = label

    def call(self, x: Any) -> Any:
        _show(x, self.label)
        return x

    def compute_output_spec(self, x: Any) -> Any:
        return keras.KerasTensor(x.shape, x.dtype)


def _show(value: Any, name: str) -> None:
    def show(array: Any) -> None:
        text = str(np.asarray(array))
        print(f"{name}: {text}" if name else text, file=sys.stderr, flush=True)

    jax.debug.callback(show, value, ordered=False)
