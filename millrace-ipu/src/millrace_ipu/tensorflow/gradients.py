"""`tf.custom_gradient`, by `jax.custom_gradient`."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import keras


def custom_gradient(f: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a function a gradient of its own.

    Args:
        f: returns its result, and a function of the gradient of that result; this returns the
            gradients of the arguments, one or a tuple of several. Keyword arguments have none.
    """

    @functools.wraps(f)
    def call(*args: Any, **kwargs: Any) -> Any:
        values = jax.tree.map(_value, args)
        return jax.custom_gradient(functools.partial(f, **kwargs))(*values)

    return call


def _value(argument: Any) -> Any:
    return argument.value if isinstance(argument, keras.Variable) else argument
