"""Private Keras: variables with a shape and no value, for models that are described.

A model of seven billion parameters is then built, traced and compiled without memory for them.
Checked on keras 3.13.0, 3.15.1 and 3.16.0.dev.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

from millrace._compat.jax_tracing import is_tracing
from millrace._compat.patch_table import (
    CALL_WITHOUT_VALUES,
    VARIABLE_ASSIGN,
    VARIABLE_INIT,
    VARIABLE_LATER,
)
from millrace._compat.patches import held, replace
from millrace.base.threads.scoped_value import ScopedValue
from millrace.errors import ModelError

# Bytes of the largest variable that has a value: counters, seeds and rates, which programs read,
# and what the layers of preprocessing adapt to.
MOST_BYTES = 1 << 16

_describes = ScopedValue(False)
_in_call = ScopedValue(False)  # of the outermost layer


class NoValueError(ModelError):
    """The value of a variable was asked for that has none."""


class NoValue:
    """Stands in a variable for its initializer, which Keras asks where there is no value yet."""

    def __init__(self, path: str):
        self._path = path

    def __call__(self, shape: tuple[int, ...], dtype: Any = None) -> jax.Array:
        """Returns zeros while a shape is inferred or a step is traced, which computes nothing."""
        if not is_tracing():
            raise NoValueError(
                f"The variable {self._path!r} has a shape, {tuple(shape)}, and no value: its model "
                "was built for a target, whose devices are not here. To look at values or to "
                "train, build the model in the scope of a strategy without a target."
            )
        return jnp.zeros(shape, dtype)


@contextmanager
def described_variables() -> Iterator[None]:
    """Gives large variables that are made in this thread a shape and no value.

    A layer that is called for arrays, and cannot compute without such a value, returns the
    `KerasTensor`s of its outputs: a program that calls a model to have it built goes on.
    """
    with held(), _describes.bound_to(True):
        replace(VARIABLE_INIT, _wrapped_init)
        replace(VARIABLE_LATER, _wrapped_later)
        replace(VARIABLE_ASSIGN, _wrapped_assign)
        replace(CALL_WITHOUT_VALUES, _wrapped_call)
        yield


def _wrapped_init(original: Callable[..., None]) -> Callable[..., None]:
    def initialize(self: keras.Variable, initializer: Any) -> None:
        private: Any = self
        nbytes = math.prod(private._shape) * jnp.dtype(private._dtype).itemsize
        if _describes.get() and nbytes > MOST_BYTES:
            private._value, private._initializer = None, NoValue(self.path)
        else:
            original(self, initializer)

    return initialize


def _wrapped_later(original: Callable[..., None]) -> Callable[..., None]:
    def initialize(self: keras.Variable) -> None:
        original(self)
        private: Any = self
        if private._value is None:  # Keras has taken the initializer away
            private._initializer = NoValue(self.path)

    return initialize


def _wrapped_assign(original: Callable[..., None]) -> Callable[..., None]:
    def assign(self: keras.Variable, value: Any) -> None:
        private: Any = self
        if not isinstance(private._initializer, NoValue):
            original(self, value)

    return assign


def _wrapped_call(original: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: keras.Layer, *args: Any, **kwargs: Any) -> Any:
        if not _describes.get() or _in_call.get():
            return original(self, *args, **kwargs)
        try:
            with _in_call.bound_to(True):
                return original(self, *args, **kwargs)
        except NoValueError:
            given: Any = keras.tree.map_structure(_symbolic, (args, kwargs))
            return original(self, *given[0], **given[1])

    return call


def _symbolic(value: Any) -> Any:
    is_array = isinstance(value, jax.Array | np.ndarray)
    return keras.KerasTensor(value.shape, str(value.dtype)) if is_array else value
