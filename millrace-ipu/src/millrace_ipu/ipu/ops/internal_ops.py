"""Operations for debugging: `print_tensor`, and those that chose where on a device a value is."""

import atexit
import functools
import queue
import sys
import threading
from typing import Any

import jax
import keras

from millrace_ipu.ipu.replacements import other_name as _other_name

_FLUSH_SECONDS = 5.0  # at the end of the process


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


def remap_deduce(x: Any, name: str | None = None) -> Any:
    """Returns `x`: there are no tiles to map it to."""
    return x


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
    # XLA calls the function, which must not wait for the numbers: a thread prints them.
    lines = _lines()
    jax.debug.callback(lambda array: lines.put((name, array)), value, ordered=False)


@functools.cache
def _lines() -> "queue.SimpleQueue[Any]":
    """Returns a queue of names and values, which a thread prints in their order."""
    lines: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def show() -> None:
        while True:
            name, value = lines.get()
            if isinstance(value, threading.Event):
                value.set()
                continue
            print(f"{name}: {value}" if name else value, file=sys.stderr, flush=True)

    threading.Thread(target=show, name="print_tensor", daemon=True).start()
    atexit.register(_flush, lines)
    return lines


def _flush(lines: "queue.SimpleQueue[Any]") -> None:
    printed = threading.Event()
    lines.put(("", printed))
    printed.wait(_FLUSH_SECONDS)
