"""The times of a schedule as arrays, with the properties of a `Timeline`.

start   0.0 1.0 4.0 ...      of each task, row by row
end     1.0 2.0 6.0 ...
"""

import functools
import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from millrace.records.timeline import Span, Timeline
from millrace.schedules.rows import PASSES, ScheduleRows

TaskTimes = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class RowsTimeline:
    """All tasks of one update with their times."""

    rows: ScheduleRows
    start: TaskTimes  # of each task of `rows`
    end_of_task: TaskTimes

    @property
    def num_groups(self) -> int:
        """Number of device groups."""
        return self.rows.num_rows

    @property
    def num_stages(self) -> int:
        """Stages that have a task here, counted from 0 to the last one."""
        return self.rows.num_stages

    @property
    def end(self) -> float:
        """When the last task ends: the time of all tasks."""
        return float(self.end_of_task.max(initial=0.0))

    @functools.cached_property
    def busy(self) -> tuple[float, ...]:
        """Time in tasks, for each device group."""
        duration, starts = self.end_of_task - self.start, self.rows.starts
        # One after the other, as in a `Timeline`: numpy's sum rounds differently.
        return tuple(
            float(np.cumsum(duration[begin:end])[-1]) if begin < end else 0.0
            for begin, end in itertools.pairwise(starts)
        )

    @property
    def idle(self) -> tuple[float, ...]:
        """Time between tasks, before the first and after the last, for each device group."""
        end = self.end
        return tuple(end - busy for busy in self.busy)

    @property
    def bubble(self) -> float:
        """Idle share of the time of all device groups, from 0 to 1."""
        end = self.end
        return sum(self.idle) / (self.num_groups * end) if end else 0.0

    @functools.cached_property
    def in_flight(self) -> tuple[int, ...]:
        """For each stage the most activation sets that it held at one time."""
        begin, end = self._held
        return tuple(_peak(*both) for both in zip(begin, end, strict=True))

    @functools.cached_property
    def peak_in_flight(self) -> tuple[int, ...]:
        """For each device group the most activation sets that its stages held at one time."""
        begin, end = self._held
        row_of = self.rows.row_of_stage
        stages = [np.flatnonzero(row_of == row) for row in range(self.num_groups)]
        return tuple(_peak(begin[each].ravel(), end[each].ravel()) for each in stages)

    @property
    def timeline(self) -> Timeline:
        """The same as objects, by start, with ties by row; for few tasks."""
        rows = self.rows
        groups = np.repeat(np.arange(rows.num_rows), np.diff(rows.starts))
        spans = (
            Span(int(stage), PASSES[int(kind)], int(m), int(group), float(start), float(end))
            for kind, stage, m, group, start, end in zip(
                rows.kinds,
                rows.stages,
                rows.micro_batches,
                groups,
                self.start,
                self.end_of_task,
                strict=True,
            )
        )
        by_start = sorted(spans, key=lambda span: (span.start, span.group))
        return Timeline(tuple(by_start), self.num_groups)

    @functools.cached_property
    def _held(self) -> tuple[TaskTimes, TaskTimes]:
        """From when to when each stage holds the set of each micro-batch; never if it has none."""
        rows = self.rows
        shape = rows.num_stages, rows.num_micro_batches
        begin, end = np.full(shape, np.inf), np.full(shape, -np.inf)
        where = rows.stages, rows.micro_batches
        np.minimum.at(begin, where, self.start)
        np.maximum.at(end, where, self.end_of_task)
        return begin, end


def _peak(begin: TaskTimes, end: TaskTimes) -> int:
    # A set that ends when another begins leaves its memory to it.
    begin, end = np.sort(begin[begin < np.inf]), np.sort(end[end > -np.inf])
    held = np.arange(1, len(begin) + 1) - np.searchsorted(end, begin, side="right")
    return int(held.max(initial=0))
