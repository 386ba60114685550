"""A loop that goes on while a condition holds.

inputs -> condition? -> body -> condition? -> body -> ... -> condition? -> values
"""

from collections.abc import Callable
from typing import Any

from millrace.arguments import checked
from millrace.feeds.infeed_queue import InfeedQueue
from millrace.loops.body import Body
from millrace.loops.repeat import turns
from millrace.loops.run import run_loop


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
