"""Calls that wait for a session, in programs of TensorFlow 1, which are built first and run later.

eager          call_or_defer(function, x) -> function(x)
graph mode     call_or_defer(function, x) -> a deferred value, for session.run
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

import jax

from millrace.extend import OnHost, current_scope, in_replica, is_tracing, look_at
from millrace_ipu.tensorflow.graph_mode import Deferred, Placeholder, in_graph_mode, is_deferred

Returned = TypeVar("Returned")
_OPEN = (None, -1)  # sizes that a placeholder has only once it is fed


def call_or_defer(
    function: Callable[..., Returned], *args: object, length: int | None = None
) -> Returned | Deferred:
    """Calls a function, or defers the call to a session.

    Args:
        function: runs on the host.
        args: its arguments.
        length: number of values that the result can be unpacked into; None if unknown.
    """
    if in_graph_mode() or is_deferred(args):
        return Deferred(function, args, on_host=True, length=length)
    return function(*args)


def is_within_a_program() -> bool:
    """Whether calls become part of a program: whether one is being traced."""
    return current_scope() is not None or is_tracing()


def number_of_results(
    computation: Callable[..., object], inputs: Sequence[object], replicas: int
) -> int | None:
    """Traces a function that a session will run, and returns its number of results.

    Queues that the function enqueues are marked as enqueued, so that the program can continue to
    dequeue them. Open sizes of placeholders are taken to be 1.

    Returns:
        None if the number depends on deferred values, or on sizes that are open.
    """
    specs, has_open_sizes = {}, False
    for index, value in enumerate(inputs):
        if isinstance(value, Placeholder) and value.shape is not None:
            sizes = [1 if n in _OPEN else n for n in value.shape]
            specs[index] = jax.ShapeDtypeStruct(sizes, value.dtype)
            has_open_sizes |= sizes != list(value.shape)

    def call(arrays: dict[int, jax.Array]) -> object:
        return computation(*[arrays.get(index, value) for index, value in enumerate(inputs)])

    if any(is_deferred(value) for index, value in enumerate(inputs) if index not in specs):
        return None
    try:
        with in_replica(None, replicas):
            result = look_at(call, specs).result
    except OnHost:
        return None
    except Exception:
        if has_open_sizes:  # the call may succeed with the sizes that are fed
            return None
        raise
    results = result if isinstance(result, list | tuple) else [result]
    return sum(value is not None for value in results) or None
