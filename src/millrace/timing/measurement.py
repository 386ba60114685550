"""The measurement of one trace: a thread for each device group waits for its tasks in order.

    host      dispatches  F0 F1 B0 ...            JAX returns from a call before it has run
    thread    waits for        F0     F1     B0   of group 0, in the order of their dispatch
    span                  |----F0|--F1|   |--B0|

A task starts when the one before it on its group has ended, its inputs have arrived, and the host
has dispatched it; it ends when its result is there. XLA runs the programs of a device in the order
of their dispatch, so these times leave nothing out, and no program is changed for them.

An end is seen when the thread wakes up, some 20 to 100 us after it; a task that ends that much
later starts the next one that much later. Where a task has ended before its dispatch returned, as
small programs do on CPUs, its end is that of the dispatch.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from queue import SimpleQueue
from typing import NamedTuple

import jax

from millrace._compat.jax_arrays import are_ready
from millrace.records.timeline import Span
from millrace.records.trace import ActivitySpan, ExecutionTrace
from millrace.schedules.task import Task
from millrace.timing.activities import Activities

# Read once, as close together as possible: traces are put in order by it, also of two processes.
_SINCE_1970 = max(time.time() - time.perf_counter() for _ in range(100))
JOIN_SECONDS = 5.0  # longest wait for a measurement at the end of a loop

logger = logging.getLogger("millrace")


class Dispatched(NamedTuple):
    """Something that a device group was told to run."""

    what: Task | str
    begin: float  # of its dispatch
    ended: float | None  # if it had ended when the dispatch returned
    inputs: Sequence[jax.Array]  # from other groups
    outputs: Sequence[jax.Array]  # ready when it has ended; not donated to any later program


class GroupTimes(NamedTuple):
    """What one thread has measured, in seconds of `time.perf_counter`."""

    spans: list[Span]
    activities: list[ActivitySpan]


class Measurement:
    """The measurement of one trace, from its first dispatch to the end of its last task."""

    def __init__(
        self,
        trace: ExecutionTrace,
        before: Sequence[Sequence[jax.Array]],
        activities: Activities,
        finish: Callable[[ExecutionTrace], None],
    ):
        """Starts a thread for each device group of this process.

        Args:
            trace: without times.
            before: for each device group of this process the arrays that are ready once the work
                that was dispatched to it earlier has ended.
            activities: beside the devices.
            finish: takes the trace, on one of the threads.
        """
        self._trace, self._activities, self._finish = trace, activities, finish
        self._seen: tuple[Sequence[jax.Array], Sequence[jax.Array]] | None = None
        self._is_dropped = self._is_sealed = False
        self._lock = threading.Lock()
        self._queues: dict[int, SimpleQueue[Dispatched | None]] = {}
        self._times: list[GroupTimes] = []
        self._threads: list[threading.Thread] = []
        self._before = before
        self.updates = 1

    def ran(self, inputs: Sequence[jax.Array], outputs: Sequence[jax.Array]) -> None:
        """Notes the arrays of the task whose dispatch is about to end.

        Args:
            inputs: that came from other groups.
            outputs: any that are ready when it has ended, and that no later program takes over.
        """
        self._seen = inputs, outputs

    def add(self, what: Task | str, group: int, begin: float) -> None:
        """Adds what was dispatched just now; nothing if it did not run in this process.

        Args:
            what: a task, or a name. One of micro-batch -1 has no span: only its end counts.
            group: number of the device group.
            begin: seconds, of `time.perf_counter`, at which its dispatch began.
        """
        if self._seen is None:
            return
        (inputs, outputs), self._seen = self._seen, None
        has_ended = bool(outputs) and are_ready(outputs)
        ended = time.perf_counter() if has_ended else None
        self._queue(group).put(Dispatched(what, begin, ended, inputs, outputs))

    def seal(self) -> None:
        """Ends the measurement: its threads end once everything has run."""
        if self._is_sealed:
            return
        self._is_sealed = True
        for queue in self._queues.values():
            queue.put(None)

    def drop(self) -> None:
        """Ends the measurement without a trace."""
        self._is_dropped = True
        self.seal()

    def join(self) -> None:
        """Waits until the threads have ended."""
        end = time.monotonic() + JOIN_SECONDS
        for thread in self._threads:
            thread.join(max(end - time.monotonic(), 0))

    @property
    def is_alive(self) -> bool:
        """Whether one of its threads runs."""
        return any(thread.is_alive() for thread in self._threads)

    def _queue(self, group: int) -> "SimpleQueue[Dispatched | None]":
        if group not in self._queues:
            queue = self._queues[group] = SimpleQueue()
            thread = threading.Thread(
                target=self._measure, args=(group, queue), name="millrace-timing", daemon=True
            )
            self._threads.append(thread)
            thread.start()
        return self._queues[group]

    def _measure(self, group: int, queue: "SimpleQueue[Dispatched | None]") -> None:
        times = GroupTimes([], [])
        try:
            free = _wait(self._before[group])
            while (entry := queue.get()) is not None:
                free = _time(times, group, entry, free)
        except Exception as error:  # of a task that failed, which the loop reports
            self._is_dropped = True
            logger.debug("A trace was dropped: %s", error)
        with self._lock:
            self._times.append(times)
            is_last = self._is_sealed and len(self._times) == len(self._queues)
        if is_last and not self._is_dropped:
            self._end()

    def _end(self) -> None:
        spans = [span for times in self._times for span in times.spans]
        rows = [each for times in self._times for each in times.activities]
        both = [(each.start, each.end) for each in (*spans, *rows)]
        if not both:
            return
        start, end = min(each for each, _ in both), max(each for _, each in both)
        beside = self._activities.between(start, end)
        rows = [replace(each, start=each.start - start, end=each.end - start) for each in rows]
        self._finish(
            replace(
                self._trace,
                updates=self.updates,
                began=_SINCE_1970 + start,
                spans=tuple(
                    replace(each, start=each.start - start, end=each.end - start)
                    for each in sorted(spans, key=lambda span: (span.start, span.group))
                ),
                activities=tuple(sorted([*rows, *beside], key=lambda each: each.start)),
            )
        )


def _wait(arrays: Iterable[jax.Array]) -> float:
    """Waits for arrays, and returns the time."""
    for array in arrays:
        array.block_until_ready()
    return time.perf_counter()


def _time(times: GroupTimes, group: int, entry: Dispatched, free: float) -> float:
    """Waits for an entry, adds its span, and returns its end.

    Args:
        times: of the group.
        group: its number.
        entry: what comes next.
        free: when what came before it ended.
    """
    start, end = max(free, entry.begin), entry.ended
    if end is None:
        if not are_ready(entry.inputs):
            start = max(start, _wait(entry.inputs))
        end = _wait(entry.outputs) if entry.outputs else start
    end = max(end, start)
    if isinstance(entry.what, Task):
        task = entry.what
        if task.micro_batch >= 0:
            times.spans.append(
                Span(task.stage, task.kind.value, task.micro_batch, group, start, end)
            )
    else:
        times.activities.append(ActivitySpan(f"group {group}", entry.what, start, end))
    return end
