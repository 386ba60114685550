"""What Orbax leaves of a write that failed: tasks that go on for a moment, and print errors."""

import asyncio
import contextlib
import gc
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from millrace._compat.asyncio_tasks import all_tasks

_LATE_TRIALS, _LATE_SECONDS = 20, 0.1  # for which the remains of a failed write may run on


@contextlib.contextmanager
def hidden_late_errors() -> Iterator[None]:
    """Surrounds a write or a read. Hides errors of the tasks that Orbax leaves after a failed one.

    They end in threads of tensorstore, or when they are freed, where their event loop is closed;
    Python and asyncio would print an error for each of them. The write or read raises its own.
    """
    _late_errors.begin()
    try:
        yield
    finally:
        _late_errors.end()


def forget_failed_tasks() -> None:
    """Waits until what a failed write or read has left has ended, and frees it."""
    for _ in range(_LATE_TRIALS):
        gc.collect()
        tasks = all_tasks()
        if tasks is not None and not any(map(_is_left, tasks)):
            return
        time.sleep(_LATE_SECONDS)


def _is_left(task: asyncio.Task[Any]) -> bool:
    return not task.done() and task.get_loop().is_closed()


def _is_not_of_orbax(record: logging.LogRecord) -> bool:
    return "orbax" not in record.getMessage()


class _LateErrors:
    """Python's hook for errors that nobody can catch, and asyncio's log, while arrays are moved."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._before: Callable[[Any], Any] = sys.unraisablehook
        self._own = self._handle
        self._logger = logging.getLogger("asyncio")

    def begin(self) -> None:
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._before, sys.unraisablehook = sys.unraisablehook, self._own
                self._logger.addFilter(_is_not_of_orbax)

    def end(self) -> None:
        with self._lock:
            self._users -= 1
            if not self._users:
                self._logger.removeFilter(_is_not_of_orbax)
                if sys.unraisablehook is self._own:
                    sys.unraisablehook = self._before

    def _handle(self, unraisable: Any) -> None:
        if str(unraisable.exc_value) != "Event loop is closed":
            self._before(unraisable)


_late_errors = _LateErrors()
