"""What a task waits for, wherever that runs.

    0F0 ──> 1F0 ──> 2F0
     │       │       │        a forward   for the forward of the stage before
     v       v       v        a backward  for its own forward, and the backward of the stage after
    0B0 <── 1B0 <── 2B0       W           for I of the same stage

Besides, each task waits for the one before it in its row.
"""

from collections.abc import Collection

from millrace.schedules.task import Pass, Schedule, Task


def dependencies(schedule: Schedule) -> dict[Task, tuple[Task, ...]]:
    """Returns for each task the tasks whose results it takes.

    They are what the pipeline needs, also where the schedule has no such task.
    """
    tasks = {task for row in schedule for task in row}
    last = max((task.stage for task in tasks), default=0)
    return {task: tuple(_waits_for(task, tasks, last)) for task in tasks}


def _waits_for(task: Task, tasks: Collection[Task], last: int) -> list[Task]:
    stage, m = task.stage, task.micro_batch
    if task.kind is Pass.FORWARD:
        return [Task(stage - 1, Pass.FORWARD, m)] if stage else []
    if task.kind is Pass.BACKWARD_WEIGHT:
        return [Task(stage, Pass.BACKWARD_INPUT, m)]
    forward = Task(stage, Pass.FORWARD, m)
    if stage == last:
        return [forward]
    half = Task(stage + 1, Pass.BACKWARD_INPUT, m)
    return [forward, half if half in tasks else Task(stage + 1, Pass.BACKWARD, m)]
