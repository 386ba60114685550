"""Common end of all processes after an error in one; each names the process that failed first.

A process that waits for another in a collective operation cannot be interrupted: a second thread
prints the message and ends the process. An error in the main thread that only follows from the
end of the other process, such as a lost connection, is neither announced nor shown.

A process that leaves by `sys.exit(143)` was preempted: it has received SIGTERM. Usually all have,
so it waits for the others to leave likewise, before it counts as the first that failed.
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
from typing import NoReturn

import jax

from millrace._compat.patch_table import EXCEPTHOOK, EXIT
from millrace._compat.patches import replace
from millrace.base.interrupts import TERMINATED
from millrace.errors import ProcessError
from millrace.run.processes.control_channel import ControlChannel, Failure

GRACE_SECONDS = 1.0  # for `finally` blocks and files that are being written
_FOLLOW_SECONDS = 10.0  # for the others, after this process was preempted
_NEWS_SECONDS = 2.0  # until a failure elsewhere is reported, after a connection was lost
_THREADS_SECONDS = 30.0  # for threads that the interpreter waits for, such as writers of files
_NOT_THE_USERS = (sysconfig.get_path("purelib"), str(pathlib.Path(__file__).parents[2]))
_LONGEST = 2000  # characters of an error
# XLA's message in the ValueError of a value that is read: "UNKNOWN: Gloo all-reduce failed: ...".
_STATUS = re.compile("(UNKNOWN|UNAVAILABLE|INTERNAL|ABORTED|CANCELLED|DEADLINE_EXCEEDED): ")


def failure_of_others(wait_seconds: float = _NEWS_SECONDS) -> str | None:
    """Returns the first failure of another process, for an error that may only follow from it.

    Args:
        wait_seconds: how long to wait for the report, which may come after a lost connection.

    Returns:
        A sentence that names the process and its error; None if no other process has failed.
    """
    if _monitor is None:
        return None
    failure = _monitor.of_others(wait_seconds)
    return None if failure is None else _monitor.explain(failure)


def ends_together() -> bool:
    """Whether `end_together` was called: millrace has connected this process."""
    return _monitor is not None


def end_together(channel: ControlChannel, note: Callable[[str], None] = lambda text: None) -> None:
    """Makes this process end with the others, and the others with this one, from now on.

    Args:
        channel: to the other processes.
        note: called with the first failure, in this process or another.
    """
    global _monitor
    _monitor = FailureMonitor(channel, note)
    _monitor.install()
    channel.start()


def describe(error: BaseException) -> str:
    """Returns an error in a few lines, with the line of the user's code that led to it."""
    text = "".join(traceback.format_exception_only(error)).strip()
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(_NOT_THE_USERS)] or frames
    where = f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""
    return (text if len(text) <= _LONGEST else text[:_LONGEST] + "...") + where


ExceptHook = Callable[[type[BaseException], BaseException, TracebackType | None], object]


class FailureMonitor:
    """Watches for the end of this process and of the others, in a thread until the process ends."""

    def __init__(self, channel: ControlChannel, note: Callable[[str], None]):
        self.channel = channel
        self._note = note
        self._pid = os.getpid()
        self._status: object = None  # exit status of this process; None if it has not failed
        self._previous_hook: ExceptHook = sys.excepthook
        self._watcher = threading.Thread(target=self._watch, name="millrace watcher", daemon=True)

    def install(self) -> None:
        """Replaces the functions that Python calls at the end of a program, and starts to watch."""
        replace(EXCEPTHOOK, self._hook)
        replace(EXIT, self._exit)
        # Before JAX's own, which was registered first and waits for all processes to come.
        atexit.register(self._at_exit)
        self._watcher.start()

    def of_others(self, wait_seconds: float) -> Failure | None:
        """Returns the first failure if it was in another process."""
        self.channel.failed.wait(wait_seconds)
        failure = self.channel.first
        return None if failure is None or failure.process.index == self.channel.index else failure

    def explain(self, failure: Failure) -> str:
        """Returns a sentence about the failure of another process."""
        role = ", the coordinator," if failure.process.index == 0 else ""
        return f"{failure.process}{role} failed first: {failure.text}"

    def _watch(self) -> None:
        self.channel.failed.wait()
        failure = self.channel.first
        if failure is None:
            return
        self._note(f"{failure.process.index}\n{failure.text}")
        if failure.process.index == self.channel.index:
            return
        with contextlib.suppress(OSError, ValueError, AttributeError):  # stderr may be closed
            sys.stderr.write(
                f"\nmillrace: {self.explain(failure)}\n"
                f"millrace: process {self.channel.index} of {len(self.channel.members)} ends with "
                "it.\n"
            )
            sys.stderr.flush()
        time.sleep(GRACE_SECONDS)
        self._end(1)

    def _hook(self, original: ExceptHook) -> ExceptHook:
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
            self.channel.announce(describe(error))

    def _exit(self, original: Callable[[object], NoReturn]) -> Callable[..., NoReturn]:
        # SystemExit bypasses sys.excepthook, and at exit Python no longer knows the status. The
        # others, which may wait for this process in a collective operation, would take it for done.
        def exit_(status: object = None, /) -> NoReturn:
            if threading.current_thread() is threading.main_thread():
                self._status = status or None
            original(status)

        return exit_

    def _at_exit(self) -> None:
        if os.getpid() != self._pid:
            return
        if self.of_others(0) is not None:
            self._watcher.join()  # which ends the process, with its message
        if self._status is None or self._status == TERMINATED:
            self.channel.leave()
            if self._status == TERMINATED:  # JAX's function at exit waits for the others
                threading.Thread(target=self._end_preempted, daemon=True).start()
            return
        self.channel.announce(f"it ended with exit status {self._status}.")
        self._end(self._status if isinstance(self._status, int) else 1)

    def _end_preempted(self) -> None:
        # Those that do not follow may wait for this process in a collective operation.
        time.sleep(_FOLLOW_SECONDS)
        self.channel.announce(
            f"it was preempted (exit status {TERMINATED}), and the others continued."
        )
        self._end(TERMINATED)

    def _end_late(self) -> None:
        time.sleep(_THREADS_SECONDS)
        self._end(1)

    def _end(self, status: int) -> None:
        """Ends this process at once: JAX would wait for processes that have gone."""
        if self.channel.index == 0:
            # JAX aborts the others when its coordinator goes, so it goes last.
            self.channel.alone.wait(2 * GRACE_SECONDS)
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
    """Whether an error or its cause may come from the end of another process."""
    while error is not None:
        if isinstance(error, ProcessError | jax.errors.JaxRuntimeError) or _STATUS.match(
            str(error)
        ):
            return True
        error = error.__cause__ or error.__context__
    return False


_monitor: FailureMonitor | None = None
