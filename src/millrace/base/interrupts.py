"""Ctrl-C and SIGTERM during a loop, delayed until the model is in a consistent state.

    with held_back():              fit, evaluate, predict and other loops
        with uninterrupted():      a second Ctrl-C waits, even in code of the user
        with terminated_by():      a training with checkpoints: SIGTERM, too
        raise_if_interrupted()     between executions and while waiting for data: raises it
        with at_once():            the user's data set: raises it anywhere inside

Anywhere else Ctrl-C could come between a call that reuses the memory of the variables' values and
the line that stores the new ones, or in the middle of Keras's building of a model.
"""

import _signal  # type: ignore[import-not-found]  # `signal` looks for names of handlers: 15 us
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from millrace._compat.patch_table import INTERRUPTS, TERMINATION
from millrace._compat.patches import Patch, put_in, take_out
from millrace.base.own_code import is_own_module

PATIENCE_SECONDS = 1.0  # a second Ctrl-C after this time is raised at once in code of the user
TERMINATED = 128 + signal.SIGTERM  # the exit status of a process that ended by this signal


class ImpatientInterrupt(KeyboardInterrupt):
    """A second or third Ctrl-C, which does not wait for a consistent state of the model."""


class TerminatedError(SystemExit):
    """SIGTERM has arrived: the process saves its training, and leaves."""


class _Held:
    """The state of a loop that holds Ctrl-C back."""

    def __init__(self) -> None:
        self.since: float | None = None  # time of the first Ctrl-C that has not been raised
        self.second: float | None = None  # time of a second one, which has to wait, too
        self.raises_at_once = 0  # nesting of `at_once`
        self.waits = 0  # nesting of `uninterrupted`

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Records Ctrl-C, or raises it: in a data set, or if an earlier one has waited long."""
        now = time.monotonic()
        if self.raises_at_once:
            self.since = self.second = None
            raise KeyboardInterrupt
        if self.since is None:
            self.since = now
        elif now - (self.second or self.since) > PATIENCE_SECONDS:
            if self.second is None and (self.waits or not _is_users(frame)):
                self.second = now
                sys.stderr.write(
                    "millrace: Ctrl-C ends the loop as soon as its weights are whole. Another one "
                    "ends it now, which can lose them.\n"
                )
                return
            self.since = self.second = None
            raise ImpatientInterrupt

    def check(self) -> None:
        if self.since is not None and not (_termination and _termination.is_agreed):
            self.since = self.second = None
            raise KeyboardInterrupt


_LIBRARIES = {"keras", "optree", "jax", "jaxlib", "numpy"}


def _is_users(frame: FrameType | None) -> bool:
    """Whether code of the user runs, which may be interrupted: a callback, or a layer's `call`.

    Our own code, and that of Keras and JAX, may just have values in its hands that are nowhere
    else. The standard library, and the constructor of a named tuple, work for their callers.
    """
    while frame is not None:
        package = frame.f_globals.get("__name__", "").partition(".")[0]
        if package not in sys.stdlib_module_names and not package.startswith("namedtuple_"):
            return package not in _LIBRARIES and not is_own_module(package)
        frame = frame.f_back
    return True


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
        or _signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):
        yield
        return
    held = _held = _Held()
    try:
        _handle(INTERRUPTS, signal.SIGINT, held.handle, signal.default_int_handler)
        yield
    finally:
        _held = None
        take_out(INTERRUPTS)
        held.check()


def _handle(patch: Patch, number: int, handle: Callable[..., None], default: Any) -> None:
    """Installs a handler of a signal until the patch is taken out."""

    def undo() -> None:
        if _signal.getsignal(number) is handle:
            _signal.signal(number, default)

    put_in(patch, undo)
    _signal.signal(number, handle)


class Termination:
    """SIGTERM, and Ctrl-C, while a training with checkpoints runs."""

    def __init__(self, deadline_seconds: float, is_agreed: bool):
        """Begins to wait for the signals; see `terminated_by`."""
        self._deadline_seconds = deadline_seconds
        self.is_agreed = is_agreed
        self._has_arrived = False

    @property
    def signal(self) -> int:
        """The signal that has arrived, and waits: SIGTERM, SIGINT or 0."""
        if self._has_arrived:
            return signal.SIGTERM
        waits = _held is not None and _held.since is not None and _is_main_thread()
        return signal.SIGINT if waits else 0

    def leave(self, number: int) -> None:
        """Raises what a signal raises, once all processes are at the same place.

        Args:
            number: of the signal, which may have arrived in another process only.

        Raises:
            TerminatedError: for SIGTERM.
            KeyboardInterrupt: for SIGINT.
        """
        if _held is not None:
            _held.since = None
        if number == signal.SIGTERM:
            raise TerminatedError(TERMINATED)
        raise KeyboardInterrupt

    def handle(self, number: int, frame: object) -> None:
        """Notes the signal, and ends the process at the deadline."""
        if self._has_arrived:
            return
        self._has_arrived = True
        timer = threading.Timer(self._deadline_seconds, self._end)
        timer.daemon = True
        timer.start()

    def check(self) -> None:
        if self._has_arrived and not self.is_agreed:
            raise TerminatedError(TERMINATED)

    def _end(self) -> None:
        sys.stderr.write(
            f"millrace: {self._deadline_seconds:g} seconds after SIGTERM the training has not "
            "come to a place where it can be saved. The process ends; the newest complete "
            "checkpoint stays.\n"
        )
        sys.stderr.flush()
        os._exit(TERMINATED)


_termination: Termination | None = None  # of the main thread


@contextmanager
def terminated_by(deadline_seconds: float, is_agreed: bool) -> Iterator[Termination]:
    """Surrounds a training that saves when SIGTERM arrives.

    A handler that the user has installed for SIGTERM stays in force. In other threads than the
    main one, which gets no signals, it does nothing.

    Args:
        deadline_seconds: time from the signal to the end of the process, whatever happens.
        is_agreed: whether only `Termination.signal` tells of it, and of the first Ctrl-C, since
            several processes have to leave at the same place.
    """
    global _termination
    termination = Termination(deadline_seconds, is_agreed)
    is_own = signal.getsignal(signal.SIGTERM) in (signal.SIG_DFL, None)
    if _termination is not None or not _is_main_thread() or not is_own:
        yield termination
        return
    try:
        # Instead of the system's, or of one that jax.distributed has installed in C++.
        _handle(TERMINATION, signal.SIGTERM, termination.handle, _signal.SIG_DFL)
        _termination = termination
        yield termination
    finally:
        _termination = None
        take_out(TERMINATION)


def raise_if_interrupted() -> None:
    """Raises a Ctrl-C or a SIGTERM that has been held back.

    Raises:
        KeyboardInterrupt: if there has been a Ctrl-C.
        TerminatedError: if there has been a SIGTERM.
    """
    if (_held is not None or _termination is not None) and _is_main_thread():
        if _held is not None:
            _held.check()
        if _termination is not None:
            _termination.check()


def is_held_back() -> bool:
    """Whether Ctrl-C or SIGTERM waits for `raise_if_interrupted` in this thread."""
    return (_held is not None or _termination is not None) and _is_main_thread()


class uninterrupted:  # noqa: N801 - used as a function
    """Surrounds a call that takes over the memory of values, and the lines that store the new ones.

    The program may call a Python function of the user, in which no Ctrl-C is raised either.
    """

    __slots__ = ("_held",)

    def __enter__(self) -> None:
        self._held = _held if _is_main_thread() else None
        if self._held is not None:
            self._held.waits += 1

    def __exit__(self, *error: object) -> None:
        if self._held is not None:
            self._held.waits -= 1


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
