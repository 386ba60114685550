"""The measurement of one trace: the thread of each device group waits for its tasks in order.

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

import functools
import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from queue import SimpleQueue
from typing import NamedTuple

import jax

from millrace._compat.jax_arrays import are_ready
from millrace.base.activities import Activities
from millrace.base.records.timeline import Span
from millrace.base.records.trace import ActivitySpan, ExecutionTrace
from millrace.run.schedules.task import Task
from millrace.run.timing.threads import GroupThreads

# Read once, as close together as possible: traces are put in order by it, also of two processes.
_SINCE_1970 = max(time.time() - time.perf_counter() for _ in range(100))

logger = logging.getLogger("millrace")


class Dispatched(NamedTuple):
    """Something that a device group was told to run."""

    what: Task | str
    begin: float  # of its dispatch
    ended: float | None  # if it had ended when the dispatch returned
    inputs: Sequence[jax.Array]  # from other groups
    outputs: Sequence[jax.Array]  # ready when it has ended; not donated to any later program


GroupTimes = list[Span | ActivitySpan]  # of one thread, in seconds of `time.perf_counter`


class Measurement:
    """The measurement of one trace, from its first dispatch to the end of its last task."""

    def __init__(
        self,
        trace: ExecutionTrace,
        before: Sequence[Sequence[jax.Array] | None],
        activities: Activities,
        threads: GroupThreads,
        finish: Callable[[ExecutionTrace], None],
    ):
        """Gives each device group's thread something to wait for.

        Args:
            trace: without times.
            before: for each device group the arrays that are ready once the work that was
                dispatched to it earlier has ended; None for a group of another process.
            activities: beside the devices.
            threads: of the device groups.
            finish: takes the trace, on one of the threads.
        """
        self._trace, self._activities, self._finish = trace, activities, finish
        self._seen: tuple[Sequence[jax.Array], Sequence[jax.Array]] | None = None
        self._is_dropped = self._is_sealed = False
        self._lock = threading.Lock()
        self._times: list[GroupTimes] = []
        self._began = time.perf_counter()  # before anything was dispatched
        self.updates = 1
        here = {group: arrays for group, arrays in enumerate(before) if arrays is not None}
        self._queues: dict[int, SimpleQueue[Dispatched | None]] = {k: SimpleQueue() for k in here}
        if here:
            activities.watch()
        for group, arrays in here.items():
            # On a busy core the thread looks so late that it would take work that has ended for
            # the begin of what comes after it.
            first = () if are_ready(arrays) else arrays
            threads.run(group, functools.partial(self._measure, group, first))

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
        self._queues[group].put(Dispatched(what, begin, ended, inputs, outputs))

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

    def _measure(self, group: int, before: Sequence[jax.Array]) -> None:
        times: GroupTimes = []
        try:
            free = _wait(before) if before else 0.0
            is_first = True
            while (entry := self._queues[group].get()) is not None:
                if is_first and entry.ended is not None and free > entry.ended:
                    free = entry.begin  # the end of what came before was seen late
                is_first, free = False, _time(times, group, entry, free)
        except Exception as error:  # of a task that failed, which the loop reports
            self._is_dropped = True
            logger.debug("A trace was dropped: %s", error)
        with self._lock:
            self._times.append(times)
            is_last = len(self._times) == len(self._queues)
        if is_last:
            self._activities.unwatch()
            if self._is_sealed and not self._is_dropped:
                self._end()

    def _end(self) -> None:
        both = [each for times in self._times for each in times]
        if not both:
            return
        spans = [each for each in both if isinstance(each, Span)]
        rows = [each for each in both if isinstance(each, ActivitySpan)]
        start, end = min(each.start for each in both), max(each.end for each in both)
        # From the begin of the dispatch on, which comes long before the first task in a process
        # that waits for another one: `update_traces` cuts off what is before the tasks of both.
        beside = self._activities.between(min(start, self._began), end)
        rows = [
            replace(each, start=each.start - start, end=each.end - start)
            for each in (*rows, *beside)
        ]
        self._finish(
            replace(
                self._trace,
                updates=self.updates,
                began=_SINCE_1970 + start,
                spans=tuple(
                    replace(each, start=each.start - start, end=each.end - start)
                    for each in sorted(spans, key=lambda span: (span.start, span.group))
                ),
                activities=tuple(sorted(rows, key=lambda each: each.start)),
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
            times.append(Span(task.stage, task.kind.value, task.micro_batch, group, start, end))
    else:
        times.append(ActivitySpan(f"group {group}", entry.what, start, end))
    return end
