"""Loops of a given number of iterations, and loops that go on while a condition holds.

inputs -> body -> body -> ... n times ... -> body -> values
           ^       ^                          ^
infeed     x0      x1                         x(n-1)

inputs -> condition? -> body -> condition? -> body -> ... -> condition? -> values
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from millrace._compat.jax_tracing import is_traced
from millrace.arguments import checked
from millrace.errors import OptionError
from millrace.feeds.infeed_queue import InfeedQueue
from millrace.loops.body import Body
from millrace.loops.run import run_loop
from millrace.options import whole_number


@checked
def repeat(
    n: Any, body: Callable[..., Any], inputs: Any = None, infeed: InfeedQueue | None = None
) -> Any:
    """Calls `body` n times, as one compiled loop.

        millrace.repeat(1000, train_step, infeed=millrace.InfeedQueue(dataset))

    Keras layers, metrics and optimizers are used in the body as they are; their variables have
    their new values when the loop is over.

    Args:
        n: turns: a number, or inside of a compiled function also an array.
        body: called with the values that go round, and then with what one element of the infeed
            has: the items of a tuple, those of a dict by name. Returns the former for the next
            turn.
        inputs: values of the first turn: one, a list, or None if nothing goes round.
        infeed: gives every turn an element.

    Returns:
        The values after the last turn: one, a list of several, None for none.

    Raises:
        LoopError: if the body does not take what it is given, or returns values of other types.
        DataError: if the data ends before the loop does. The turns before have been run.
    """
    return run_loop(body, None, inputs, infeed, turns("n", n))


def turns(name: str, value: Any) -> Any:
    """Returns a number of turns, or says that it is none."""
    if is_traced(value) and value.shape == ():
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
    condition: Callable[..., Any],
    body: Callable[..., Any],
    inputs: Any = None,
    infeed: InfeedQueue | None = None,
    maximum_iterations: Any = None,
) -> Any:
    """Calls `body` as long as `condition` returns true, as one compiled loop.

        millrace.while_loop(lambda loss: loss > 0.1, train_step, inputs=1.0, infeed=infeed)

    Args:
        condition: called with the values that go round before each turn. It may read variables.
        body: as for `repeat`.
        inputs: as for `repeat`.
        infeed: as for `repeat`. Elements that were prepared and not used stay in it.
        maximum_iterations: turns, at most; None is no limit.

    Returns:
        The values after the last turn: one, a list of several, None for none.

    Raises:
        LoopError: if body or condition do not fit what the loop gives them.
        DataError: if the data ends before the loop does. The turns before have been run.
    """
    Body(condition, "condition")  # None would be a loop of repeat()
    limit = None if maximum_iterations is None else turns("maximum_iterations", maximum_iterations)
    return run_loop(body, condition, inputs, infeed, limit)
