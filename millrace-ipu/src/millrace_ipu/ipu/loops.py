"""Training loops on the device.

repeat(n, body, inputs, infeed_queue)                   -> millrace.repeat(n, body, inputs, infeed)
while_loop(condition, body, inputs, infeed_queue, n)    -> millrace.while_loop
use_while_v1                                            without effect
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import keras

from millrace import InfeedQueue
from millrace import repeat as native_repeat
from millrace import while_loop as native_while_loop
from millrace_ipu.pytrees import ArrayTree
from millrace_ipu.tensorflow.computed_losses import with_losses
from millrace_ipu.tensorflow.conversion.convert import converted


def repeat(
    n: int | jax.Array,
    body: Callable[..., object],
    inputs: ArrayTree = None,
    infeed_queue: InfeedQueue | None = None,
    use_while_v1: bool = True,
) -> Any:
    """Calls `body` n times.

    Args:
        n: number of iterations.
        body: called with the loop's values, followed by the parts of one element of the queue: by
            name if the element is a dict, one by one if it is a tuple. Returns the values for the
            next iteration, and may return operations after them.
        inputs: values of the first iteration: one, a list, or None without any.
        infeed_queue: gives each iteration an element.
        use_while_v1: without effect.

    Returns:
        The values after the last iteration: one, a list of several, or None without any.
    """
    del use_while_v1
    return native_repeat(n, _native(body, inputs), inputs, infeed_queue)


def while_loop(
    condition: Callable[..., object],
    body: Callable[..., object],
    inputs: ArrayTree = None,
    infeed_queue: InfeedQueue | None = None,
    maximum_iterations: int | jax.Array | None = None,
    use_while_v1: bool = True,
) -> Any:
    """Calls `body` while `condition` of the loop's values is true, otherwise as `repeat` does.

    Args:
        condition: called with the loop's values before each iteration.
        body: as for `repeat`.
        inputs: as for `repeat`.
        infeed_queue: as for `repeat`.
        maximum_iterations: limit of iterations; None is no limit.
        use_while_v1: without effect.
    """
    del use_while_v1
    return native_while_loop(
        condition, _native(body, inputs), inputs, infeed_queue, maximum_iterations
    )


def _native(body: Callable[..., object], inputs: object) -> Callable[..., object]:
    """Returns a body for native loops, which leaves out the operations after its values."""
    carried = 0 if inputs is None else len(inputs) if isinstance(inputs, list | tuple) else 1
    function = with_losses(converted(body))

    @functools.wraps(body)
    def values(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        results = list(result) if isinstance(result, list | tuple) else [result]
        if len(results) <= carried or not isinstance(results[-1], keras.Variable):
            return result
        while len(results) > carried and isinstance(results[-1], keras.Variable | None):
            results.pop()  # the count of updates, which optimizers return
        return results

    values.of_user = function.of_user  # type: ignore[attr-defined]
    return values
