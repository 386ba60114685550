"""Where the time of an update goes, from three simulations of its schedule.

    work            24.0   the tasks of a device group, on average
    unequal stages   0.0   by which the fullest group has more
    bubble           9.0   simulated with free transfers and free dispatch, less the two above
    transfers        2.0   by which it takes longer with transfers: they are not hidden behind work
    dispatch         0.5   by which it takes longer with dispatch, too
    gradient sum     1.0   over replicas, after the last task
    update           0.5   of the weights
                    37.0

No cost makes a simulation shorter, so that no part is negative.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from millrace.records.timeline import Timeline
from millrace.schedules.concurrent import levels_of
from millrace.schedules.costs import StageCosts, UpdateCosts
from millrace.schedules.dependencies import dependencies
from millrace.schedules.rows import PASSES, ScheduleRows, TaskNumbers
from millrace.schedules.rows_timeline import RowsTimeline
from millrace.schedules.simulate import simulate
from millrace.schedules.simulate_rows import TaskProgress, simulate_rows, slots_of
from millrace.schedules.task import Pass, Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateTime:
    """The parts of the time of an update, in the unit of the costs."""

    work: float
    unequal_stages: float
    bubble: float
    transfers: float
    dispatch: float
    gradient_sum: float
    update: float
    timeline: Timeline | RowsTimeline  # with all costs, up to the end of the last task

    @property
    def total(self) -> float:
        """The time of the whole update."""
        return self.timeline.end + self.gradient_sum + self.update

    def parts(self) -> Iterator[tuple[str, float]]:
        """Yields the name and the time of each part; their sum is `total`."""
        yield "work", self.work
        yield "unequal stages", self.unequal_stages
        yield "bubble", self.bubble
        yield "transfers", self.transfers
        yield "dispatch", self.dispatch
        yield "gradient sum", self.gradient_sum
        yield "update", self.update


def update_time(
    schedule: Schedule | ScheduleRows, costs: UpdateCosts, progress: TaskProgress | None = None
) -> UpdateTime:
    """Simulates an update, and divides its time.

    Args:
        schedule: rows of tasks, as objects or as arrays; the result is the same.
        costs: of its tasks and of everything else.
        progress: takes the tasks that are simulated, and all; only arrays take long enough.

    Raises:
        ScheduleError: if the schedule stops before its end, or the costs lack a pass.
    """
    simulation = _ScheduleRuns(schedule, progress, 1 + bool(costs.transfer) + bool(costs.dispatch))
    free = moved = timeline = simulation.run(costs.tasks, 0.0, 0.0)
    tasks = _with_transfers(costs, simulation.stages)
    if tasks is not costs.tasks or costs.transfer:
        moved = timeline = simulation.run(tasks, costs.transfer, 0.0)
    if costs.dispatch:
        tasks, dispatch = _with_dispatch(tasks, costs)
        timeline = simulation.run(tasks, costs.transfer, dispatch)
    # Sums of durations may differ from ends in their last digits.
    fullest = min(max(free.busy, default=0.0), free.end)
    work = min(sum(free.busy) / max(free.num_groups, 1), fullest)
    return UpdateTime(
        work=work,
        unequal_stages=fullest - work,
        bubble=free.end - fullest,
        transfers=moved.end - free.end,
        dispatch=timeline.end - moved.end,
        gradient_sum=costs.gradient_sum,
        update=costs.update,
        timeline=timeline,
    )


class _ScheduleRuns:
    """Runs of one schedule with several costs."""

    def __init__(self, schedule: Schedule | ScheduleRows, progress: TaskProgress | None, runs: int):
        self._schedule, self._progress, self._runs = schedule, progress, runs
        self._run = -1
        if isinstance(schedule, ScheduleRows):
            self._slots = slots_of(schedule)
            rows = schedule.row_of_stage
            levels = np.arange(len(rows))
        else:
            self._waits = dependencies(schedule)
            home = {task.stage: row for row, tasks in enumerate(schedule) for task in tasks}
            count = max(home, default=-1) + 1
            rows = np.array([home.get(stage, 0) for stage in range(count)], np.int64)
            levels = np.array(levels_of(schedule, len(rows)))
        self.stages = _Stages(rows, levels)

    def run(self, tasks: StageCosts, transfer: float, dispatch: float) -> Timeline | RowsTimeline:
        self._run += 1
        if isinstance(self._schedule, ScheduleRows):
            return simulate_rows(
                self._schedule, tasks, transfer, dispatch, self._slots, self._report
            )
        cost = {kind: list(each) for kind, each in tasks.items()}
        return simulate(
            self._schedule, lambda t: cost[t.kind][t.stage], transfer, self._waits, dispatch
        )

    def _report(self, done: int, total: int) -> None:
        if self._progress is not None:
            self._progress(self._run * total + done, self._runs * total)


class _Stages(NamedTuple):
    rows: TaskNumbers  # of each stage
    levels: TaskNumbers


def _with_transfers(costs: UpdateCosts, stages: _Stages) -> StageCosts:
    """Returns the costs of tasks with the work of the transfers that they wait for and start."""
    if not (costs.is_core_shared and costs.transfer_work):
        return costs.tasks
    different = stages.rows[:, None] != stages.rows
    before = (different & (stages.levels[:, None] == stages.levels + 1)).sum(axis=1)
    after = (different & (stages.levels[:, None] == stages.levels - 1)).sum(axis=1)
    moves = {kind: before + after for kind in PASSES if kind is not Pass.BACKWARD_WEIGHT}
    return {
        kind: [
            float(each + costs.transfer_work * count)
            for each, count in zip(tasks, moves.get(kind, 0 * before), strict=True)
        ]
        for kind, tasks in costs.tasks.items()
    }


def _with_dispatch(tasks: StageCosts, costs: UpdateCosts) -> tuple[StageCosts, float]:
    """Returns the costs of tasks, and the time of a dispatch beside them."""
    if not costs.is_core_shared:
        return tasks, costs.dispatch
    return {kind: [time + costs.dispatch for time in each] for kind, each in tasks.items()}, 0.0
