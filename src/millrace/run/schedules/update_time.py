"""The parts of the time of an update, from three simulations of its schedule.

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

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from millrace.base.records.timeline import Timeline
from millrace.run.schedules.concurrent import levels_of
from millrace.run.schedules.costs import StageCosts, UpdateCosts
from millrace.run.schedules.dependencies import dependencies
from millrace.run.schedules.simulate import simulate
from millrace.run.schedules.task import Pass, Schedule


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
    timeline: Timeline  # with all costs, up to the end of the last task

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
    schedule: Schedule, costs: UpdateCosts, progress: Callable[[int, int], None] | None = None
) -> UpdateTime:
    """Simulates an update, and divides its time.

    Args:
        schedule: rows of tasks.
        costs: of its tasks and of everything else.
        progress: called before each simulation with its number, from 1, and that of all.

    Raises:
        ScheduleError: if the schedule stops before its end, or the costs lack a pass.
    """
    waits = dependencies(schedule)
    runs, begun = 1 + bool(costs.transfer or costs.transfer_work) + bool(costs.dispatch), 0

    def run(tasks: StageCosts, transfer: float, dispatch: float) -> Timeline:
        nonlocal begun
        begun += 1
        if progress is not None:
            progress(begun, runs)
        cost = {kind: list(each) for kind, each in tasks.items()}
        return simulate(schedule, lambda t: cost[t.kind][t.stage], transfer, waits, dispatch)

    free = moved = timeline = run(costs.tasks, 0.0, 0.0)
    tasks = _with_transfers(costs, schedule)
    if tasks is not costs.tasks or costs.transfer:
        moved = timeline = run(tasks, costs.transfer, 0.0)
    if costs.dispatch:
        tasks, dispatch = _with_dispatch(tasks, costs)
        timeline = run(tasks, costs.transfer, dispatch)
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


def _with_transfers(costs: UpdateCosts, schedule: Schedule) -> StageCosts:
    """Returns the costs of tasks with the work of the transfers that they wait for and start."""
    if not (costs.is_core_shared and costs.transfer_work):
        return costs.tasks
    home = {task.stage: row for row, tasks in enumerate(schedule) for task in tasks}
    count = max(home, default=-1) + 1
    rows = np.array([home.get(stage, 0) for stage in range(count)], np.int64)
    levels = np.array(levels_of(schedule, count))
    different = rows[:, None] != rows
    before = (different & (levels[:, None] == levels + 1)).sum(axis=1)
    after = (different & (levels[:, None] == levels - 1)).sum(axis=1)
    moves = {kind: before + after for kind in Pass if kind is not Pass.BACKWARD_WEIGHT}
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
