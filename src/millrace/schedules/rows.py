"""A schedule as arrays: sizes that would be too many objects, such as eight million tasks.

row 0   0F0 0F1 0B0 0B1      kinds          0 0 1 1 | 0 1 0 1     index in `PASSES`
row 1   1F0 1B0 1F1 1B1      stages         0 0 0 0 | 1 1 1 1
micro_batches  0 1 0 1 | 0 0 1 1
starts         0         4         8
"""

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from millrace.schedules.task import Pass, Schedule

PASSES = tuple(Pass)
TaskNumbers = NDArray[np.integer]
_NO_TASK = -1  # in `packed`: no task


@dataclass(frozen=True, slots=True, eq=False)
class ScheduleRows:
    """The tasks of all rows, one row after the other, each in its order."""

    kinds: TaskNumbers  # of each task, its index in `PASSES`
    stages: TaskNumbers
    micro_batches: TaskNumbers
    starts: TaskNumbers  # of each row its first task, and the number of all tasks

    @property
    def num_rows(self) -> int:
        """Number of device groups."""
        return len(self.starts) - 1

    @property
    def num_tasks(self) -> int:
        """Number of tasks in all rows."""
        return len(self.kinds)

    @property
    def num_stages(self) -> int:
        """Stages that have a task here, counted from 0 to the last one."""
        return int(self.stages.max(initial=-1)) + 1

    @property
    def num_micro_batches(self) -> int:
        """Micro-batches that have a task here, counted from 0 to the last one."""
        return int(self.micro_batches.max(initial=-1)) + 1

    @property
    def row_of_stage(self) -> TaskNumbers:
        """The row of each stage; 0 for one without tasks."""
        rows = np.zeros(self.num_stages, np.int64)
        rows[self.stages] = np.repeat(np.arange(self.num_rows), np.diff(self.starts))
        return rows


def rows_of(schedule: Schedule) -> ScheduleRows:
    """Returns a schedule of tasks as arrays."""
    tasks = [task for row in schedule for task in row]
    index = {kind: number for number, kind in enumerate(PASSES)}
    return ScheduleRows(
        np.array([index[task.kind] for task in tasks], np.int8),
        np.array([task.stage for task in tasks], np.int32),
        np.array([task.micro_batch for task in tasks], np.int32),
        np.array([0, *itertools.accumulate(map(len, schedule))], np.int64),
    )


class RowsAtPositions:
    """Collects tasks by their position in their row, and leaves out positions without a task."""

    def __init__(self, num_rows: int, length: int):
        """Makes empty rows.

        Args:
            num_rows: number of device groups.
            length: positions of a row.
        """
        self._kinds = np.full((num_rows, length), _NO_TASK, np.int8)
        self._stages = np.zeros((num_rows, length), np.int32)
        self._micro_batches = np.zeros((num_rows, length), np.int32)

    def put(
        self, kind: Pass, rows: TaskNumbers, stages: TaskNumbers, positions: TaskNumbers
    ) -> None:
        """Puts one pass of some stages on all micro-batches at their positions.

        Args:
            kind: the pass.
            rows: of each stage, `[stages]`.
            stages: their numbers, `[stages]`.
            positions: in the row, `[stages, micro-batches]`.
        """
        where = rows[:, None], positions
        self._kinds[where] = PASSES.index(kind)
        self._stages[where] = stages[:, None]
        self._micro_batches[where] = np.arange(positions.shape[1])

    def packed(self) -> ScheduleRows:
        """Returns the rows."""
        has_task = self._kinds != _NO_TASK
        return ScheduleRows(
            self._kinds[has_task],
            self._stages[has_task],
            self._micro_batches[has_task],
            np.concatenate([[0], np.cumsum(has_task.sum(axis=1))]),
        )
