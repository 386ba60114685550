"""Simulation of a schedule: from the costs of tasks to the time at which each runs.

    stage 0 |F0 F1       B0---    B1---
    stage 1 |   F0 B0--- F1 B1---

A device group runs its tasks in the order of its row, each as soon as the group is free and all
inputs of the task have arrived.
"""

from collections import deque
from collections.abc import Callable, Mapping

from millrace.base.records.timeline import Span, Timeline
from millrace.errors import ScheduleError
from millrace.run.schedules.dependencies import deadlock_message, dependencies
from millrace.run.schedules.task import Pass, Schedule, Task

Waits = Mapping[Task, tuple[Task, ...]]
UNIT_COST: Mapping[Pass, float] = {
    Pass.FORWARD: 1.0,
    Pass.BACKWARD: 2.0,  # one product for the inputs and one for the weights, where F has one
    Pass.BACKWARD_INPUT: 1.0,
    Pass.BACKWARD_WEIGHT: 1.0,
}


def simulate(
    schedule: Schedule,
    cost: Mapping[Pass, float] | Callable[[Task], float],
    transfer: float = 0.0,
    waits: Waits | None = None,
    dispatch: float = 0.0,
) -> Timeline:
    """Computes when each task runs, and from that bubble and memory.

    Args:
        schedule: rows of tasks, one for each device group.
        cost: time of each pass, or a function that gives the time of each task.
        transfer: time from one device group to another, in the same unit. A group keeps working
            meanwhile. Between stages of one group it is 0.
        waits: `dependencies` of the schedule, where they are there already.
        dispatch: time in which the host of a device group dispatches a task. It goes through the
            row task by task, ahead of the group, and no task starts before its dispatch has ended.

    Returns:
        The tasks by start, with ties by row. The row is the span's group.

    Raises:
        ScheduleError: if the schedule stops before its end, or `cost` lacks a pass.
    """
    waits = dependencies(schedule) if waits is None else waits
    ended: dict[Task, float] = {}
    row_of = {task: row for row, tasks in enumerate(schedule) for task in tasks}
    spans: list[Span] = []
    free = [0.0] * len(schedule)
    remaining = [deque(row) for row in schedule]
    progress = True
    while progress:
        progress = False
        for row, tasks in enumerate(remaining):
            while tasks:
                task = tasks[0]
                dispatched = (len(schedule[row]) - len(tasks) + 1) * dispatch
                start = max(free[row], dispatched)
                for other in waits[task]:
                    if (sender := ended.get(other)) is None:
                        break
                    arrived = sender if row_of[other] == row else sender + transfer
                    start = max(start, arrived)
                else:
                    progress = True
                    free[row] = end = start + _cost(cost, task)
                    ended[tasks.popleft()] = end
                    spans.append(Span(task.stage, task.kind, task.micro_batch, row, start, end))
                    continue
                break
    if any(remaining):
        raise ScheduleError(deadlock_message(schedule, waits, ended))
    return Timeline(tuple(sorted(spans, key=lambda span: (span.start, span.group))), len(schedule))


def merged(schedule: Schedule) -> tuple[Task, ...]:
    """Returns the tasks of all rows in one order, each after the tasks that it waits for.

    This is the order of their starts in a simulation with `UNIT_COST`. With it a host that calls
    the tasks one by one, without waiting for results, keeps all device groups busy.

    Raises:
        ScheduleError: if the schedule stops before its end.
    """
    spans = simulate(schedule, UNIT_COST).spans
    return tuple(Task(span.stage, Pass(span.kind), span.micro_batch) for span in spans)


def _cost(cost: Mapping[Pass, float] | Callable[[Task], float], task: Task) -> float:
    if callable(cost):
        return cost(task)
    if task.kind not in cost:
        names = ", ".join(f"Pass.{kind.name}" for kind in cost)
        raise ScheduleError(
            f"The schedule has {task}, and `cost` has only {names}. "
            f"Add the time of Pass.{task.kind.name} to it."
        )
    return cost[task.kind]
