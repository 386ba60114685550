"""Ctrl-C while a loop runs: it waits for a place where the model is whole.

    with held_back():              fit, evaluate, predict and their kind
        raise_if_interrupted()     between executions and while waiting for data: Ctrl-C comes here
        with at_once():            the user's own data set: Ctrl-C comes wherever this is

Anywhere else it might come between a call that takes the memory of the variables' values and the
line that keeps the new ones, or between two lines of Keras that build one thing.
"""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from millrace._compat.patch_table import INTERRUPTS
from millrace._compat.patches import put_in, take_out

PATIENCE_SECONDS = 1.0  # a second Ctrl-C after these does not wait


class _Held:
    """What is known of one loop that holds Ctrl-C back."""

    def __init__(self) -> None:
        self.since: float | None = None  # the first Ctrl-C that nothing has been raised for
        self.raises_at_once = 0  # nesting of `at_once`

    def handle(self, number: int, frame: object) -> None:
        """Takes note of Ctrl-C, or raises it: in a data set, and where it has waited for long."""
        now = time.monotonic()
        if self.raises_at_once or (self.since is not None and now - self.since > PATIENCE_SECONDS):
            self.since = None
            raise KeyboardInterrupt
        if self.since is None:
            self.since = now

    def check(self) -> None:
        if self.since is not None:
            self.since = None
            raise KeyboardInterrupt


_held: _Held | None = None  # by the main thread, the only one that gets signals


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


@contextmanager
def held_back() -> Iterator[None]:
    """Surrounds a loop. Where Ctrl-C has a handler of the user's, that one is left in force.

    Raises:
        KeyboardInterrupt: at the end, for a Ctrl-C that came after the last place to raise it.
    """
    global _held
    if (
        _held is not None
        or not _is_main_thread()
        or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):
        yield
        return
    held = _held = _Held()
    handle = held.handle  # one object, to be found again

    def undo() -> None:
        if signal.getsignal(signal.SIGINT) is handle:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    try:
        put_in(INTERRUPTS, undo)
        signal.signal(signal.SIGINT, handle)
        yield
    finally:
        _held = None
        take_out(INTERRUPTS)
        held.check()


def raise_if_interrupted() -> None:
    """Raises a Ctrl-C that was held back.

    Raises:
        KeyboardInterrupt: if there was one.
    """
    if _held is not None and _is_main_thread():
        _held.check()


def is_held_back() -> bool:
    """Whether Ctrl-C waits for `raise_if_interrupted` in this thread."""
    return _held is not None and _is_main_thread()


@contextmanager
def at_once() -> Iterator[None]:
    """Surrounds what may be interrupted anywhere: it has nothing of the model in its hands.

    Raises:
        KeyboardInterrupt: for a Ctrl-C that was held back, and for those to come.
    """
    held = _held if _is_main_thread() else None
    if held is None:
        yield
        return
    held.raises_at_once += 1
    try:
        held.check()
        yield
    finally:
        held.raises_at_once -= 1
