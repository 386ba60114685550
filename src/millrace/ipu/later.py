"""Now, or when a session runs it: what a program of TensorFlow 1 builds first and runs later.

eager          later(function, x) -> function(x)
graph mode     later(function, x) -> a deferred value, for session.run
"""

from collections.abc import Callable
from typing import Any

import jax

from millrace._compat.jax_tracing import is_tracing
from millrace._compat.keras_scope import current_scope
from millrace.loops.host_driven import OnHost
from millrace.loops.replication import in_replica
from millrace.loops.scope import look_at
from millrace.tensorflow.graph_mode import Deferred, Placeholder, in_graph_mode, is_deferred

_OPEN = (None, -1)  # sizes that are known once a placeholder is fed


def later(function: Callable[..., Any], *args: Any, length: int | None = None) -> Any:
    """Calls a function, or returns what a session will call it for.

    Args:
        function: to be called on the host.
        args: of it.
        length: how many values its result can be unpacked into, if that is known.
    """
    if in_graph_mode() or is_deferred(args):
        return Deferred(function, args, on_host=True, length=length)
    return function(*args)


def is_within_a_program() -> bool:
    """Whether what is called becomes part of a program."""
    return current_scope() is not None or is_tracing()


def number_of_results(computation: Any, inputs: list[Any], replicas: int) -> int | None:
    """Looks at a function that will be run later, and returns how many results it has.

    It may enqueue what is to be dequeued then, which is known from now on.
    """
    fed = {
        place: jax.ShapeDtypeStruct([1 if n in _OPEN else n for n in value.shape], value.dtype)
        for place, value in enumerate(inputs)
        if isinstance(value, Placeholder) and value.shape is not None
    }
    guesses = any({*_OPEN} & {*inputs[place].shape} for place in fed)

    def call(given: dict[int, Any]) -> Any:
        return computation(*[given.get(place, value) for place, value in enumerate(inputs)])

    if any(is_deferred(value) for place, value in enumerate(inputs) if place not in fed):
        return None
    try:
        with in_replica(None, replicas):
            result = look_at(call, fed).result
    except OnHost:
        return None
    except Exception:
        if guesses:  # it may be right for the sizes that are fed
            return None
        raise
    results = result if isinstance(result, list | tuple) else [result]
    return sum(value is not None for value in results) or None
