"""Python's garbage collector, held back while many objects are made that all stay.

An import or a trace makes hundreds of thousands of objects, nearly none of them garbage, and the
collector visits all of them again and again: a quarter of the time from the start of a process to
its first step.
"""

import contextlib
import gc
import threading
from collections.abc import Iterator

_FEWER = 100_000  # new objects until a collection, as against 700: garbage stays bounded

_lock = threading.Lock()
_holders = 0  # contexts that hold the collector back, in all threads
_before = (0, 0, 0)  # the thresholds before the first of them


@contextlib.contextmanager
def fewer_collections() -> Iterator[None]:
    """Has the collector run rarely, in all threads, until the last of such contexts ends.

    A collector that is switched off stays off, and thresholds that are set meanwhile stay.
    """
    global _holders, _before
    with _lock:
        _holders += 1
        if _holders == 1:
            _before = gc.get_threshold()
            if 0 < _before[0] < _FEWER:
                gc.set_threshold(_FEWER, *_before[1:])
    try:
        yield
    finally:
        with _lock:
            _holders -= 1
            if _holders == 0 and gc.get_threshold() == (_FEWER, *_before[1:]):
                gc.set_threshold(*_before)
