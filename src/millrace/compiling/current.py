"""Which compile log a thread writes into: that of the strategy whose scope or `run` it is in."""

import threading

from millrace.compiling.log import CompileLog


class _Thread(threading.local):
    log: CompileLog | None = None


_thread = _Thread()
without_strategy = CompileLog()  # of functions and loops that are called outside of all of them


class logging_to:  # noqa: N801 - used as a function
    """Surrounds code whose functions and loops write into a log, in this thread."""

    __slots__ = ("_before", "_log")

    def __init__(self, log: CompileLog):
        self._log = log

    def __enter__(self) -> None:
        self._before = _thread.log
        _thread.log = self._log

    def __exit__(self, *_: object) -> None:
        _thread.log = self._before


def current_log() -> CompileLog:
    """Returns the log that this thread writes into."""
    log = _thread.log
    return without_strategy if log is None else log
