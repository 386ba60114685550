"""An error in one process ends all of them, and each says which was the first.

A process that waits for another in a collective operation cannot be interrupted: a thread beside
it prints the message and ends the process. What fails in the main thread because of the other's
end, a lost connection say, is not announced and not shown.
"""

import atexit
import contextlib
import os
import pathlib
import re
import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any

import jax

from millrace._compat.patch_table import EXCEPTHOOK, EXIT
from millrace._compat.patches import replace
from millrace.errors import ProcessError
from millrace.processes.control_channel import ControlChannel, Failure

GRACE_SECONDS = 1.0  # for `finally` blocks and files that are being written
_NEWS_SECONDS = 2.0  # in which a failure elsewhere becomes known, after a connection was lost
_THREADS_SECONDS = 30.0  # for threads that the interpreter waits for, a writer of files say
_NOT_THE_USERS = (sysconfig.get_path("purelib"), str(pathlib.Path(__file__).parent.parent))
_LONGEST = 2000  # characters of an error
# What XLA says becomes a ValueError where a value is read: "UNKNOWN: Gloo all-reduce failed: ...".
_STATUS = re.compile("(UNKNOWN|UNAVAILABLE|INTERNAL|ABORTED|CANCELLED|DEADLINE_EXCEEDED): ")


def announce_failure(error: BaseException) -> None:
    """Tells all processes that this one cannot go on. Only the first failure of a run counts.

    An error that nobody catches is announced without this.
    """
    if _together is not None:
        _together.line.announce(describe(error))


def failure_of_others(wait_seconds: float = _NEWS_SECONDS) -> str | None:
    """Says which process failed first, for an error that may only follow from it.

    Args:
        wait_seconds: how long to wait for the news, which may come after a lost connection.

    Returns:
        A sentence that names the process and its error; None if no other process has failed.
    """
    if _together is None:
        return None
    failure = _together.of_others(wait_seconds)
    return None if failure is None else _together.explain(failure)


def end_together(line: ControlChannel, note: Callable[[str], None] = lambda text: None) -> None:
    """Makes this process end with the others, and the others with this one, from now on.

    Args:
        line: the line to the others.
        note: called with the first failure, in this process or another.
    """
    global _together
    _together = FailureMonitor(line, note)
    _together.install()
    line.start()


def describe(error: BaseException) -> str:
    """An error in one line or a few, with the line of the user's that led to it."""
    text = "".join(traceback.format_exception_only(error)).strip()
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(_NOT_THE_USERS)] or frames
    where = f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""
    return (text if len(text) <= _LONGEST else text[:_LONGEST] + "...") + where


class FailureMonitor:
    """Watches over the end of this process and over that of the others."""

    def __init__(self, line: ControlChannel, note: Callable[[str], None]):
        self.line = line
        self._note = note
        self._pid = os.getpid()
        self._status: Any = None  # with which this process fails; None while it does not
        self._previous_hook: Any = sys.excepthook
        self._watcher = threading.Thread(target=self._watch, name="millrace watcher", daemon=True)

    def install(self) -> None:
        """Takes over what Python calls when a program ends."""
        replace(EXCEPTHOOK, self._hook)
        replace(EXIT, self._exit)
        # Before JAX's own, which was registered first and waits for all processes to come.
        atexit.register(self._at_exit)
        self._watcher.start()

    def of_others(self, wait_seconds: float) -> Failure | None:
        """The first failure, if it was another process's."""
        self.line.failed.wait(wait_seconds)
        failure = self.line.first
        return None if failure is None or failure.process.index == self.line.index else failure

    def explain(self, failure: Failure) -> str:
        """The failure of another process, as this one ends with it."""
        role = ", the coordinator," if failure.process.index == 0 else ""
        return f"{failure.process}{role} failed first: {failure.text}"

    def _watch(self) -> None:
        self.line.failed.wait()
        failure = self.line.first
        if failure is None:
            return
        self._note(f"{failure.process.index}\n{failure.text}")
        if failure.process.index == self.line.index:
            return
        with contextlib.suppress(OSError, ValueError, AttributeError):  # stderr may be closed
            sys.stderr.write(
                f"\nmillrace: {self.explain(failure)}\n"
                f"millrace: process {self.line.index} of {len(self.line.members)} ends with it.\n"
            )
            sys.stderr.flush()
        time.sleep(GRACE_SECONDS)
        self._end(1)

    def _hook(self, original: Any) -> Any:
        self._previous_hook = original
        return lambda *failure: self._uncaught(*failure)

    def _uncaught(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        if os.getpid() != self._pid:  # a forked child
            self._previous_hook(kind, error, trace)
            return
        threading.Thread(target=self._end_late, daemon=True).start()
        self._status = 1
        wait_seconds = _NEWS_SECONDS if _may_follow(error) else 0.0
        if self.of_others(wait_seconds) is None or not wait_seconds:
            self._previous_hook(kind, error, trace)
            self.line.announce(describe(error))

    def _exit(self, original: Any) -> Any:
        # SystemExit goes past sys.excepthook, and at exit Python no longer knows the status: to the
        # others, which may wait for this process in a collective operation, it would be done.
        def exit_(status: Any = None, /) -> None:
            if threading.current_thread() is threading.main_thread():
                self._status = status or None
            original(status)

        return exit_

    def _at_exit(self) -> None:
        if os.getpid() != self._pid:
            return
        if self.of_others(0) is not None:
            self._watcher.join()  # which ends the process, with its message
        if self._status is None:
            self.line.leave()
            return
        self.line.announce(f"it ended with exit status {self._status}.")
        self._end(self._status if isinstance(self._status, int) else 1)

    def _end_late(self) -> None:
        time.sleep(_THREADS_SECONDS)
        self._end(1)

    def _end(self, status: int) -> None:
        """Ends this process at once: JAX would wait for processes that do not come any more."""
        if self.line.index == 0:
            # JAX aborts the others when its coordinator goes, so it goes last.
            self.line.alone.wait(2 * GRACE_SECONDS)
        # A thread that is stuck may hold the lock of a stream.
        flush = threading.Thread(target=_flush, daemon=True)
        flush.start()
        flush.join(GRACE_SECONDS)
        os._exit(status & 255)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()


def _may_follow(error: BaseException | None) -> bool:
    """Whether an error, or what caused it, may come from the end of another process."""
    while error is not None:
        if isinstance(error, ProcessError | jax.errors.JaxRuntimeError) or _STATUS.match(
            str(error)
        ):
            return True
        error = error.__cause__ or error.__context__
    return False


_together: FailureMonitor | None = None
