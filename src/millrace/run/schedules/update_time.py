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

from millrace.base.records.timeline import Timeline
from millrace.run.schedules.costs import UpdateCosts
from millrace.run.schedules.dependencies import dependencies
from millrace.run.schedules.simulate import simulate
from millrace.run.schedules.task import Schedule


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
    cost = {kind: list(each) for kind, each in costs.tasks.items()}
    runs, begun = 1 + bool(costs.transfer) + bool(costs.dispatch), 0

    def run(transfer: float, dispatch: float) -> Timeline:
        nonlocal begun
        begun += 1
        if progress is not None:
            progress(begun, runs)
        return simulate(schedule, lambda t: cost[t.kind][t.stage], transfer, waits, dispatch)

    free = moved = timeline = run(0.0, 0.0)
    if costs.transfer:
        moved = timeline = run(costs.transfer, 0.0)
    if costs.dispatch:
        timeline = run(costs.transfer, costs.dispatch)
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
