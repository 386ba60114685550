"""What a runner gives back."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from millrace.taps.entries import Taps


class Part(NamedTuple):
    """What one call of compiled code, or one micro-batch, gave: its result, and its steps."""

    result: Any  # logs or outputs
    steps: int
    records: int  # length of the result's first axis, where every step has one
    first: int = 0  # of these, where replicas before it had no batch
    taps: Taps = Taps()  # entries of all `steps` from `first` on, and of their updates
    updates: int = 0  # that ended in this part


# Takes parts that carry taps, in order, as soon as they are dispatched.
Outlet = Callable[[Sequence[Part]], None]


def nowhere(parts: Sequence[Part]) -> None:
    """Takes parts whose taps nobody wants."""
    del parts
