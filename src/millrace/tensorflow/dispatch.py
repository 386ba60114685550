"""Who computes an operation: Keras, a session later on, or the real TensorFlow for its tensors."""

import functools
from collections.abc import Callable
from typing import Any

import jax

from millrace.tensorflow.graph_mode import Deferred, is_deferred
from millrace.tensorflow.real import is_in_real_graph, is_real_tensor, real_name

_FIRST = ("input_tensor", "input", "tensor", "value", "values", "x", "features", "logits")


def op(path: str, function: Callable[..., Any], keeps_names: bool = False) -> Callable[..., Any]:
    """Returns an operation of `tf`.

    Args:
        path: its name under `tf`.
        function: computes it on arrays, symbolic tensors of Keras and numbers.
        keeps_names: whether its arguments are called as those of `tf`. If not, the first may come
            by any of the names that it has there.
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if is_in_real_graph() or any(map(is_real_tensor, jax.tree.leaves((args, kwargs)))):
            return real_name(path)(*args, **kwargs)
        kwargs.pop("name", None)
        if not args and not keeps_names:
            first = next((k for k in _FIRST if k in kwargs), None)
            args = () if first is None else (kwargs.pop(first),)
        if is_deferred((args, kwargs)):
            return Deferred(function, args, kwargs)
        return function(*args, **kwargs)

    call.__name__ = call.__qualname__ = path.rpartition(".")[2]
    return call
