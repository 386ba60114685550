"""Training loops on the device.

repeat(n, body, inputs, infeed_queue)                   -> millrace.repeat(n, body, inputs, infeed)
while_loop(condition, body, inputs, infeed_queue, n)    -> millrace.while_loop
use_while_v1                                            of no effect
"""

from collections.abc import Callable
from typing import Any

from millrace.loops.repeat import repeat as native_repeat
from millrace.loops.repeat import while_loop as native_while_loop
from millrace.tensorflow.conversion.convert import converted


def repeat(
    n: Any,
    body: Callable[..., Any],
    inputs: Any = None,
    infeed_queue: Any = None,
    use_while_v1: bool = True,
) -> Any:
    """Calls `body` n times.

    Args:
        n: turns.
        body: called with what goes round, and then with what an element of the queue has: by name
            if the element is a dict, one by one if it is a tuple. Returns the former for the next
            turn, and operations after it.
        inputs: of the first turn: one value, a list, or None.
        infeed_queue: gives each turn an element.
        use_while_v1: of no effect.

    Returns:
        The values after the last turn: one, a list of several, None for none.
    """
    del use_while_v1
    return native_repeat(n, converted(body), inputs, infeed_queue)


def while_loop(
    condition: Callable[..., Any],
    body: Callable[..., Any],
    inputs: Any = None,
    infeed_queue: Any = None,
    maximum_iterations: Any = None,
    use_while_v1: bool = True,
) -> Any:
    """Calls `body` as long as `condition` of what goes round is true; else as `repeat`."""
    del use_while_v1
    return native_while_loop(condition, converted(body), inputs, infeed_queue, maximum_iterations)
