"""Loops of a fixed number of iterations, and loops that run while a condition holds.

inputs -> body -> body -> ... n times ... -> body -> values
           ^       ^                          ^
infeed     x0      x1                         x(n-1)

inputs -> condition? -> body -> condition? -> body -> ... -> condition? -> values
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import numpy as np

from millrace._compat.jax_tracing import is_traced
from millrace.arguments import checked
from millrace.errors import OptionError
from millrace.feeds.infeed_queue import InfeedQueue
from millrace.loops.body import Body
from millrace.loops.run import run_loop
from millrace.options import whole_number

Number: TypeAlias = int | np.generic | np.ndarray | jax.Array  # a scalar


@checked
def repeat(
    n: Number, body: Callable[..., object], inputs: object = None, infeed: InfeedQueue | None = None
) -> Any:
    """Calls `body` n times, as one compiled loop.

        millrace.repeat(1000, train_step, infeed=millrace.InfeedQueue(dataset))

    The body uses stock Keras layers, metrics and optimizers; their variables have their new values
    when the loop is over.

    Args:
        n: number of iterations; within a compiled function it may be a traced scalar.
        body: called with the carried values, followed by one element of the infeed: the items of
            a tuple by position, those of a dict by name. Returns the carried values for the next
            iteration.
        inputs: carried values for the first iteration: one, a list of several, or None.
        infeed: supplies one element for each iteration.

    Returns:
        The carried values after the last iteration: one, a list of several, or None.

    Raises:
        LoopError: if the body does not fit its arguments, or returns values of other types.
        DataError: if the data ends before the loop does. The iterations before have been run.
    """
    return run_loop(body, None, inputs, infeed, iterations("n", n))


def iterations(name: str, value: Number) -> int | jax.Array:
    """Returns a number of iterations: an int, or a traced int32.

    Raises:
        OptionError: if it is not a whole number from 0 to 2**31 - 2.
    """
    if isinstance(value, jax.Array) and is_traced(value) and value.shape == ():
        if np.issubdtype(value.dtype, np.integer):
            return value.astype(np.int32)
    elif isinstance(value, np.generic | np.ndarray | jax.Array) and value.shape == ():
        value = value.item()
    value = whole_number(name, value, 0)
    if value >= 2**31 - 1:
        raise OptionError(f"{name} must be below 2**31 - 1. Received: {value}.")
    return value


@checked
def while_loop(
    condition: Callable[..., object],
    body: Callable[..., object],
    inputs: object = None,
    infeed: InfeedQueue | None = None,
    maximum_iterations: Number | None = None,
) -> Any:
    """Calls `body` while `condition` returns true, as one compiled loop.

        millrace.while_loop(lambda loss: loss > 0.1, train_step, inputs=1.0, infeed=infeed)

    Args:
        condition: called with the carried values before each iteration. It may read variables.
        body: as for `repeat`.
        inputs: as for `repeat`.
        infeed: as for `repeat`. Elements that the loop does not use stay in the queue.
        maximum_iterations: the largest number of iterations; None for no limit.

    Returns:
        The carried values after the last iteration: one, a list of several, or None.

    Raises:
        LoopError: if body or condition do not fit their arguments.
        DataError: if the data ends before the loop does. The iterations before have been run.
    """
    Body(condition, "condition")  # raises for None, which run_loop takes as a loop of repeat()
    limit = maximum_iterations
    if limit is not None:
        limit = iterations("maximum_iterations", limit)
    return run_loop(body, condition, inputs, infeed, limit)
