"""The simulation of `simulate` for schedules as arrays: in each round one task of every row.

    round       1    2    3    4    5           a row waits where the task before has not ended
    stage 0     F0   F1   -    B0   F2
    stage 1     -    F0   B0   F1   B1

The order in which rows advance does not depend on costs, and the times are the same sums and
maxima as in `simulate`, to the last bit. A round takes some 100 us for a thousand rows, and
`simulate` some 5 us for each task.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from millrace.errors import ScheduleError
from millrace.schedules.costs import StageCosts
from millrace.schedules.rows import PASSES, ScheduleRows, TaskNumbers
from millrace.schedules.rows_timeline import RowsTimeline
from millrace.schedules.task import Task

TaskProgress = Callable[[int, int], None]
"""Takes the number of tasks that are simulated, and of all."""

_FORWARD, _BACKWARD, _INPUT, _WEIGHT = range(len(PASSES))
_ROUNDS = 256  # between two calls of a `TaskProgress`


@dataclass(frozen=True, slots=True)
class Slots:
    """Indices of times at which results are there; all with a task more at the end of each row."""

    first: TaskNumbers  # that each task waits for
    second: TaskNumbers
    result: TaskNumbers  # that it sets, within its row, and the next one in other rows
    number: int


def simulate_rows(
    rows: ScheduleRows,
    cost: StageCosts,
    transfer: float = 0.0,
    dispatch: float = 0.0,
    waits: Slots | None = None,
    progress: TaskProgress | None = None,
) -> RowsTimeline:
    """Computes when each task runs.

    Args:
        rows: of tasks, one for each device group.
        cost: time of each pass, by stage.
        transfer: time from one device group to another, in the same unit.
        dispatch: time in which the host of a device group dispatches a task.
        waits: `slots_of` the rows, where they are there already.
        progress: called every few rounds.

    Raises:
        ScheduleError: if the schedule stops before its end, or `cost` lacks a pass.
    """
    slots = slots_of(rows) if waits is None else waits
    costs = _costs(rows, cost)
    # When a result is there: within its row, and in other rows. Slot 0 is there from the beginning,
    # slot 1 never: the task after the last of a row waits for it.
    there = np.full(slots.number, math.inf)
    there[0] = 0.0
    start, end = np.zeros(len(costs)), np.zeros(len(costs))
    first = rows.starts[:-1] + np.arange(rows.num_rows)
    at, free = first.copy(), np.zeros(rows.num_rows)
    left, round_ = rows.num_tasks, 0
    while left:
        ready = np.maximum(there[slots.first[at]], there[slots.second[at]])
        running = np.flatnonzero(ready < math.inf)
        if not running.size:
            raise ScheduleError(_stop_message(rows, at - np.arange(rows.num_rows), left))
        tasks = at[running]
        begins = np.maximum(free[running], ready[running])
        if dispatch:
            begins = np.maximum(begins, (tasks - first[running] + 1) * dispatch)
        ends = begins + costs[tasks]
        start[tasks], end[tasks], free[running] = begins, ends, ends
        result = slots.result[tasks]
        there[result], there[result + 1] = ends, ends + transfer
        at[running] += 1
        left, round_ = left - running.size, round_ + 1
        if progress is not None and round_ % _ROUNDS == 0:
            progress(rows.num_tasks - left, rows.num_tasks)
    is_task = np.ones(len(costs), bool)
    is_task[rows.starts[1:] + np.arange(rows.num_rows)] = False
    return RowsTimeline(rows, start[is_task], end[is_task])


def slots_of(rows: ScheduleRows) -> Slots:
    """Returns the slots of all tasks: they follow from the pipeline, whatever the costs."""
    kinds, stages, m = rows.kinds, rows.stages.astype(np.int64), rows.micro_batches
    num_stages, count = rows.num_stages, rows.num_micro_batches
    row_of = rows.row_of_stage
    is_forward, is_weight = kinds == _FORWARD, kinds == _WEIGHT

    def slot(form: int, stage: TaskNumbers, micro_batch: TaskNumbers) -> TaskNumbers:
        """Returns the slot of a forward (0), of a B or I (1) or of a W (2)."""
        return 2 * ((form * num_stages + stage) * count + micro_batch) + 2

    other = np.where(is_forward, stages - 1, stages + 1)
    is_there = (other >= 0) & (other < num_stages) & ~is_weight
    other = np.clip(other, 0, num_stages - 1)
    from_other = slot(0, other, m) + np.where(is_forward, 0, 2 * num_stages * count)
    from_other += row_of[other] != row_of[stages]
    own = slot(0, stages, m) + np.where(is_weight, 2 * num_stages * count, 0)
    form = np.where(is_forward, 0, np.where(is_weight, 2, 1))
    at = rows.starts[1:]
    return Slots(
        np.insert(np.where(is_forward, 0, own), at, 1),
        np.insert(np.where(is_there, from_other, 0), at, 1),
        np.insert(2 * ((form * num_stages + stages) * count + m) + 2, at, 0),
        2 * 3 * num_stages * count + 2,
    )


def _costs(rows: ScheduleRows, cost: StageCosts) -> NDArray[np.float64]:
    table = np.zeros((len(PASSES), rows.num_stages))
    for kind in map(int, np.unique(rows.kinds)):
        if PASSES[kind] not in cost:
            names = ", ".join(f"Pass.{each.name}" for each in cost)
            raise ScheduleError(
                f"The schedule has {_task(rows, int(np.argmax(rows.kinds == kind)))}, and `cost` "
                f"has only {names}. Add the times of Pass.{PASSES[kind].name} to it."
            )
        table[kind] = cost[PASSES[kind]]
    return np.insert(table[rows.kinds, rows.stages], rows.starts[1:], 0.0)


def _task(rows: ScheduleRows, number: int) -> Task:
    kind, stage = PASSES[int(rows.kinds[number])], int(rows.stages[number])
    return Task(stage, kind, int(rows.micro_batches[number]))


def _stop_message(rows: ScheduleRows, at: TaskNumbers, left: int) -> str:
    """Explains why no row continues; `check` of the same tasks says which of them to move."""
    stuck = [
        f"row {row} at {_task(rows, number)}"
        for row, (number, end) in enumerate(zip(at, rows.starts[1:], strict=True))
        if number < end
    ]
    shown = "; ".join(stuck[:4]) + (f"; and {len(stuck) - 4} others" if len(stuck) > 4 else "")
    done = rows.num_tasks - left
    return (
        f"The schedule stops after {done:,} of {rows.num_tasks:,} tasks: {shown}. Check fewer "
        "micro-batches with make_schedule, whose error names the task to move."
    )
