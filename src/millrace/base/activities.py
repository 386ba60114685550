"""Recent activities of the host and its threads, beside those of the devices.

infeed    [block][block]      [block]
host      [dispatch][wait for data][dispatch]
outfeed               [results]
"""

import math
import threading
from collections import deque
from dataclasses import replace

from millrace.base.records.trace import ActivitySpan

KEPT = 4096  # the newest; a trace covers one update, which has few
SHORTEST = 20e-6  # seconds; a shorter wait is the lock's


class Activities:
    """The newest activities of one model. Any thread may add one."""

    def __init__(self) -> None:
        self._spans: deque[ActivitySpan] = deque(maxlen=KEPT)
        self._running: dict[str, ActivitySpan] = {}  # by row
        self._watching = 0
        self._lock = threading.Lock()

    @property
    def is_watched(self) -> bool:
        """Whether a trace is being measured: the shortest activities are added only then."""
        return self._watching > 0

    def watch(self) -> None:
        """Begins a trace."""
        with self._lock:
            self._watching += 1

    def unwatch(self) -> None:
        """Ends one."""
        with self._lock:
            self._watching -= 1

    def begin(self, row: str, name: str, start: float) -> None:
        """Notes what a row begins to do, so that a trace has it that ends before it does."""
        with self._lock:
            self._running[row] = ActivitySpan(row, name, start, start)

    def add(self, row: str, name: str, start: float, end: float) -> None:
        """Adds an activity that has ended, with which its row does nothing.

        Args:
            row: "host", "infeed" or "outfeed".
            name: what was done.
            start: seconds, of `time.perf_counter`.
            end: likewise. Very short activities are left out.
        """
        with self._lock:
            self._running.pop(row, None)
            if end - start >= SHORTEST:
                self._spans.append(ActivitySpan(row, name, start, end))

    def between(self, start: float, end: float) -> list[ActivitySpan]:
        """Returns the parts of activities within a time, both in seconds of `perf_counter`."""
        with self._lock:
            spans = list(self._spans)
            running = [replace(each, end=math.inf) for each in self._running.values()]
        return [
            replace(span, start=max(span.start, start), end=min(span.end, end))
            for span in (*spans, *running)
            if span.start < end and span.end > start
        ]
