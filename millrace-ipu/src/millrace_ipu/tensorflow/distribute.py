"""`tf.distribute`: the strategy of the scope, and that of one device, which changes nothing.

get_strategy()                    the IPUStrategy of the scope; outside, the strategy of one device
OneDeviceStrategy("/cpu:0")       what programs take where they do without IPUs
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from millrace.extend import ScopedValue
from millrace_ipu.tensorflow.dispatch import real_name

strategy_of_scope = ScopedValue[Any](None)  # of this thread


class OneDeviceStrategy:
    """Models in its scope are plain Keras models, on JAX's first device.

    Args:
        device: has no effect.
    """

    num_replicas_in_sync = 1

    def __init__(self, device: object = None):
        """Takes the device."""

    @contextlib.contextmanager
    def scope(self) -> Iterator["OneDeviceStrategy"]:
        """Has no effect, but for `get_strategy()`."""
        with strategy_of_scope.bound_to(self):
            yield self

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[object] = (),
        kwargs: Mapping[str, Any] | None = None,
        options: object = None,
    ) -> Any:
        """Returns the result of the function."""
        return fn(*args, **(kwargs or {}))


Strategy = OneDeviceStrategy
_DEFAULT = OneDeviceStrategy()


def get_strategy() -> Any:
    """Returns the strategy of the current scope; outside of all, one that changes nothing."""
    return strategy_of_scope.get() or _DEFAULT


def has_strategy() -> bool:
    """Returns whether this is in the scope of a strategy."""
    return strategy_of_scope.get() is not None


def __getattr__(name: str) -> Any:
    return real_name(f"distribute.{name}")
