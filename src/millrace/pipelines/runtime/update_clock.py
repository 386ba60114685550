"""What the time of a pipeline's updates goes to, in a process whose neighbors are on its machine.

    feed     wait for the batches of an update
    run      own work    its devices compute, and the thread of the updates waits, or is not run
             transfer    copies to and from other processes
             waiting     for another process: as long as the schedule is idle it is its bubble
             dispatch    Python, and JAX's calls

The thread that runs the updates is always in one of them, so they add up to the wall clock.
"""

import functools
import time
from collections.abc import Collection
from typing import NamedTuple

from millrace.pipelines.runtime.local_link import Neighbors
from millrace.records.statistics import UpdateSeconds
from millrace.schedules.simulate import UNIT_COST, simulate
from millrace.schedules.task import Schedule


class _Marks(NamedTuple):
    """The counters at one time."""

    wall: float
    cpu: float  # of this thread
    own_work: float
    transfer: float
    waiting: dict[int, float]


class UpdateClock:
    """Adds up the times of the updates of one runner."""

    def __init__(self, neighbors: Neighbors, stages: Collection[int]):
        """Starts without updates.

        Args:
            neighbors: of this process, which count the waits for them.
            stages: of this process.
        """
        self._neighbors, self._stages = neighbors, stages
        self.seconds = UpdateSeconds()
        self._fed_at = self._began_at = 0.0
        self._begin: _Marks | None = None
        self._idle_of = functools.lru_cache(maxsize=8)(self._idle)

    def begin(self) -> None:
        """Begins to wait for the batches of an update."""
        self._began_at = time.perf_counter()

    def fed(self) -> None:
        """Ends the wait for batches."""
        self._fed_at = time.perf_counter()
        self._begin = self._marks()

    def waited(self, seconds: float) -> None:
        """Adds a wait for the devices of this process."""
        self._neighbors.own_work += seconds

    def end(self, schedule: Schedule) -> None:
        """Ends an update with this schedule."""
        before, after = self._begin, self._marks()
        if before is None:
            return
        waiting = {
            process: seconds - before.waiting.get(process, 0.0)
            for process, seconds in after.waiting.items()
        }
        waited = sum(waiting.values())
        transfer = after.transfer - before.transfer
        own_work = after.own_work - before.own_work
        rest = max(after.wall - before.wall - waited - transfer - own_work, 0.0)
        # Where devices share the core with this thread, they also run while it should.
        dispatch = min(max(after.cpu - before.cpu - transfer, 0.0), rest)
        own_work += rest - dispatch
        bubble = min(waited, own_work * self._idle_of(schedule))
        beyond = 1 - bubble / waited if waited else 0.0
        self.seconds += UpdateSeconds(
            updates=1,
            feed=self._fed_at - self._began_at,
            own_work=own_work,
            bubble=bubble,
            waiting={process: each * beyond for process, each in waiting.items() if each},
            transfer=transfer,
            dispatch=dispatch,
        )

    def _marks(self) -> _Marks:
        each = self._neighbors
        waiting = dict(each.waiting)
        return _Marks(
            time.perf_counter(), time.thread_time(), each.own_work, each.transfer, waiting
        )

    def _idle(self, schedule: Schedule) -> float:
        """Returns the idle time of this process in a schedule, for each second of its work."""
        timeline = simulate(schedule, UNIT_COST)
        rows = (row for row, tasks in enumerate(schedule) if tasks[0].stage in self._stages)
        busy = max((timeline.busy[row] for row in rows), default=0.0)
        return (timeline.end - busy) / busy if busy else 0.0
