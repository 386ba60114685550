"""Ctrl-C during a loop, delayed until the model is in a consistent state.

    with held_back():              fit, evaluate, predict and other loops
        raise_if_interrupted()     between executions and while waiting for data: raises it
        with at_once():            the user's data set: raises it anywhere inside

Anywhere else Ctrl-C could come between a call that reuses the memory of the variables' values and
the line that stores the new ones, or in the middle of Keras's building of a model.
"""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from millrace._compat.patch_table import INTERRUPTS
from millrace._compat.patches import put_in, take_out

PATIENCE_SECONDS = 1.0  # a second Ctrl-C after this time is raised at once


class _Held:
    """The state of a loop that holds Ctrl-C back."""

    def __init__(self) -> None:
        self.since: float | None = None  # time of the first Ctrl-C that has not been raised
        self.raises_at_once = 0  # nesting of `at_once`

    def handle(self, number: int, frame: object) -> None:
        """Records Ctrl-C, or raises it: in a data set, or if an earlier one has waited long."""
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
    """Surrounds a loop. A handler that the user has installed for Ctrl-C stays in force.

    Raises:
        KeyboardInterrupt: at the end, for a Ctrl-C that has not been raised inside.
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
    handle = held.handle  # one bound method, to compare with

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
    """Raises a Ctrl-C that has been held back.

    Raises:
        KeyboardInterrupt: if there has been one.
    """
    if _held is not None and _is_main_thread():
        _held.check()


def is_held_back() -> bool:
    """Whether Ctrl-C waits for `raise_if_interrupted` in this thread."""
    return _held is not None and _is_main_thread()


@contextmanager
def at_once() -> Iterator[None]:
    """Surrounds code that may be interrupted anywhere, since it does not touch the model.

    Raises:
        KeyboardInterrupt: for a Ctrl-C that has been held back, and for those inside.
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
