"""What a task waits for, wherever that runs.

    0F0 ──> 1F0 ──> 2F0
     │       │       │        a forward   for the forward of the stage before
     v       v       v        a backward  for its own forward, and the backward of the stage after
    0B0 <── 1B0 <── 2B0       W           for I of the same stage

Besides, each task waits for the one before it in its row. Where several stages are concurrent, the
stages before and after are all those of the level before and after.
"""

from collections.abc import Collection, Sequence

from millrace.schedules.concurrent import levels_of
from millrace.schedules.task import Pass, Schedule, Task


def dependencies(schedule: Schedule) -> dict[Task, tuple[Task, ...]]:
    """Returns for each task the tasks whose results it takes.

    They are what the pipeline needs, also where the schedule has no such task.
    """
    tasks = {task for row in schedule for task in row}
    levels = levels_of(schedule, max((task.stage for task in tasks), default=0) + 1)
    return {task: tuple(_waits_for(task, tasks, levels)) for task in tasks}


def _waits_for(task: Task, tasks: Collection[Task], levels: Sequence[int]) -> list[Task]:
    stage, m = task.stage, task.micro_batch
    if task.kind is Pass.BACKWARD_WEIGHT:
        return [Task(stage, Pass.BACKWARD_INPUT, m)]
    if task.kind is Pass.FORWARD:
        return [Task(before, Pass.FORWARD, m) for before in _on(levels, levels[stage] - 1)]
    forward = Task(stage, Pass.FORWARD, m)
    after = [
        half if (half := Task(other, Pass.BACKWARD_INPUT, m)) in tasks
        else Task(other, Pass.BACKWARD, m)
        for other in _on(levels, levels[stage] + 1)
    ]  # fmt: skip
    return [forward, *after]


def _on(levels: Sequence[int], level: int) -> list[int]:
    return [stage for stage, each in enumerate(levels) if each == level]
