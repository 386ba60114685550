"""Concurrent stages: several stages that run at the same time as one stage of the schedule.

    schedule of 3 stages         stage 1 as the stages 1 and 2       levels 0, 1, 1, 2
    0F0 0F1 0B0 0B1              0F0 0F1 0B0 0B1
    1F0 1B0 1F1 1B1              1F0 1B0 1F1 1B1
    2F0 2B0 2F1 2B1              2F0 2B0 2F1 2B1     the same row, for the other stage
                                 3F0 3B0 3F1 3B1

Stages of one level take values of the level before and none of each other. So the pipeline is
shorter than with these stages in sequence: it warms up in fewer steps, and holds fewer
micro-batches.
"""

from collections.abc import Iterable, Sequence

from millrace.run.schedules.task import Schedule, Task


class ConcurrentSchedule(tuple[tuple[Task, ...], ...]):
    """Rows of tasks of stages on levels: tasks wait for those of the level before or after."""

    levels: tuple[int, ...]  # of each stage

    def __new__(
        cls, rows: Iterable[tuple[Task, ...]], levels: Sequence[int]
    ) -> "ConcurrentSchedule":
        schedule = super().__new__(cls, rows)
        schedule.levels = tuple(levels)
        return schedule

    def __getnewargs__(self) -> tuple[tuple[tuple[Task, ...], ...], tuple[int, ...]]:
        return tuple(self), self.levels


def concurrent(schedule: Schedule, levels: Sequence[int]) -> Schedule:
    """Replaces each stage of a schedule by all stages of its level.

    Args:
        schedule: with one stage for each level. A row of one stage becomes a row for each stage of
            its level; in a row of several, the stages of a level come one after the other.
        levels: of each stage, ascending from 0 without a gap.

    Returns:
        The schedule itself if each level has one stage.
    """
    members: list[list[int]] = [[] for _ in range(max(levels) + 1)]
    for stage, level in enumerate(levels):
        members[level].append(stage)
    if all(len(each) == 1 for each in members):
        return schedule
    rows: list[tuple[Task, ...]] = []
    for row in schedule:
        stages = {task.stage for task in row}
        if len(stages) == 1:
            rows += [
                tuple(Task(stage, task.kind, task.micro_batch) for task in row)
                for stage in members[stages.pop()]
            ]
        else:
            rows.append(
                tuple(
                    Task(stage, task.kind, task.micro_batch)
                    for task in row
                    for stage in members[task.stage]
                )
            )
    return ConcurrentSchedule(rows, levels)


def levels_of(schedule: Schedule, num_stages: int) -> tuple[int, ...]:
    """Returns the level of each stage; without concurrent stages it is the stage's number."""
    if isinstance(schedule, ConcurrentSchedule):
        return schedule.levels
    return tuple(range(num_stages))
