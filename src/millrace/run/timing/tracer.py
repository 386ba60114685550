"""The tracer of a loop: it traces the second, third, fifth, ninth and so on update.

update   0  1  2  3  4  5  6  7  8  9 ...
trace    -  x  x  -  x  -  -  -  x  -          0 compiles; the first one of a later loop is traced

Each further trace comes after twice as many updates, so that the traces of a long training cost
nothing and still show whether it has become slower.
"""

import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax

from millrace.base.activities import Activities
from millrace.base.records.trace import ExecutionTrace
from millrace.run.timing.measurement import Measurement
from millrace.run.timing.threads import GroupThreads

MOST_TRACES = 24  # in a loop
MOST_SPANS = 200_000  # in a run
TOGETHER = 9  # micro-batches of evaluation in a trace; the first one is not written


class TraceBudget:
    """The spans that the traces of a run may still have."""

    def __init__(self, spans: int = MOST_SPANS):
        self._left = spans
        self._lock = threading.Lock()

    def take(self, spans: int) -> bool:
        """Takes some of them; returns whether there were as many."""
        with self._lock:
            if spans > self._left:
                return False
            self._left -= spans
            return True


class TraceSubject(NamedTuple):
    """What a tracer traces, and where its traces go."""

    model: str
    mode: str
    process: int
    write: Callable[[ExecutionTrace], None]
    activities: Activities
    budget: TraceBudget
    compilations: Callable[[], int]  # so far; an update that compiles leaves no trace


class Tracer:
    """Chooses the updates of one mode of one model that leave a trace, and measures them."""

    def __init__(self, subject: TraceSubject):
        self._subject = subject
        self.activities = subject.activities
        self._loop: int | None = None
        self._epoch = 0
        self._calls = self._updates = self._traces = 0  # of the loop
        self._is_warm = False  # an update ran in an earlier loop
        self._threads = GroupThreads()
        self._open: Measurement | None = None
        self._compilations = 0  # when it was opened

    def enter(self, loop: int, epoch: int) -> None:
        """Notes the position of the execution that begins.

        Args:
            loop: its number.
            epoch: from 1; 0 if it is not known.
        """
        if loop != self._loop:
            self._is_warm = self._is_warm or self._calls > 0
            self._loop, self._calls, self._updates, self._traces = loop, 0, 0, 0
        self._epoch = epoch

    @property
    def update(self) -> int:
        """Number of the update that runs, or runs next, in its loop."""
        return self._updates

    def begin(self) -> bool:
        """Counts a call, and returns whether it should be measured."""
        call, self._calls = self._calls, self._calls + 1
        is_chosen = (call & (call - 1)) == 0 and (call > 0 or self._is_warm)
        return is_chosen and self._traces < MOST_TRACES

    def measure(
        self,
        spans: int,
        num_groups: int,
        before: Sequence[Sequence[jax.Array] | None],
        *,
        schedule: str = "",
        levels: tuple[int, ...] = (),
    ) -> Measurement | None:
        """Returns a new measurement; None if the run has enough traces.

        Args:
            spans: that it will have.
            num_groups: device groups of all processes.
            before: see `Measurement`.
            schedule: its name.
            levels: of the stages, if some are concurrent.
        """
        subject = self._subject
        if not subject.budget.take(spans):
            return None
        self._traces += 1
        trace = ExecutionTrace(
            model=subject.model,
            mode=subject.mode,
            loop=self._loop or 0,
            epoch=self._epoch,
            update=self._updates,
            began=0.0,
            num_groups=num_groups,
            process=subject.process,
            schedule=schedule,
            levels=levels,
        )
        self._compilations = subject.compilations()
        activities = subject.activities
        self._open = Measurement(trace, before, activities, self._threads, subject.write)
        return self._open

    def end(self, updates: int) -> None:
        """Counts updates that are dispatched, and ends the open measurement, if there is one.

        Args:
            updates: those of the measurement; for evaluation, the micro-batches.
        """
        self._updates += updates
        if self._open is not None:
            self._open.updates = updates
            if self._subject.compilations() != self._compilations:
                self._open.drop()
            self._open.seal()
            self._open = None

    def fail(self) -> None:
        """Ends the open measurement of an update that failed."""
        if self._open is not None:
            self._open.drop()
            self._open = None

    def close(self) -> None:
        """Ends all measurements, and waits for their threads."""
        self.end(0)
        self._threads.close()
