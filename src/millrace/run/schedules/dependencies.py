"""Dependencies of tasks, and the message about a schedule that stops before its end.

    0F0 ──> 1F0 ──> 2F0
     │       │       │        a forward   for the forward of the stage before
     v       v       v        a backward  for its own forward, and the backward of the stage after
    0B0 <── 1B0 <── 2B0       W           for I of the same stage

Each task also waits for the one before it in its row. Where stages are concurrent, the stages
before and after are all stages of the level before and after.

row 0   0F0 0B0     next is 0B0, which waits for 1B0
row 1   1B0 1F0     next is 1B0, which waits for 1F0: put 1F0 before 1B0
"""

from collections.abc import Collection, Mapping, Sequence

from millrace.run.schedules.concurrent import levels_of
from millrace.run.schedules.task import Pass, Schedule, Task


def dependencies(schedule: Schedule) -> dict[Task, tuple[Task, ...]]:
    """Returns for each task the tasks whose results it takes.

    These follow from the pipeline, even if the schedule lacks such a task.
    """
    # One object for each task: of 100,000 tasks, objects that stay cost most of the time.
    tasks = {task: task for row in schedule for task in row}
    levels = levels_of(schedule, max((task.stage for task in tasks), default=0) + 1)
    # By stage: a schedule has few stages and many tasks.
    before = [_on(levels, level - 1) for level in levels]
    after = [_on(levels, level + 1) for level in levels]
    return {
        task: tuple([tasks.get(other, other) for other in _waits_for(task, tasks, before, after)])
        for task in tasks
    }


def _waits_for(
    task: Task,
    tasks: Collection[Task],
    before: Sequence[Sequence[int]],
    after: Sequence[Sequence[int]],
) -> list[Task]:
    stage, m = task.stage, task.micro_batch
    if task.kind is Pass.BACKWARD_WEIGHT:
        return [Task(stage, Pass.BACKWARD_INPUT, m)]
    if task.kind is Pass.FORWARD:
        return [Task(other, Pass.FORWARD, m) for other in before[stage]]
    forward = Task(stage, Pass.FORWARD, m)
    backwards = [
        half if (half := Task(other, Pass.BACKWARD_INPUT, m)) in tasks
        else Task(other, Pass.BACKWARD, m)
        for other in after[stage]
    ]  # fmt: skip
    return [forward, *backwards]


def _on(levels: Sequence[int], level: int) -> list[int]:
    return [stage for stage, each in enumerate(levels) if each == level]


def deadlock_message(
    schedule: Schedule, waits: Mapping[Task, tuple[Task, ...]], done: Collection[Task]
) -> str:
    """Explains why no row of a stuck schedule continues, and which task to move.

    Args:
        schedule: a schedule that stops before its end.
        waits: its `dependencies`.
        done: the tasks that could run, at least one less than all.
    """
    heads = {
        number: next(task for task in row if task not in done)
        for number, row in enumerate(schedule)
        if any(task not in done for task in row)
    }
    row_of = {task: number for number, row in enumerate(schedule) for task in row}

    def first_missing(task: Task) -> Task | None:
        return next((other for other in waits.get(task, ()) if other not in done), None)

    stuck = "; ".join(
        f"row {row} has {task} next, which waits for {first_missing(task)}"
        for row, task in heads.items()
    )
    # The first undone task of a chain has all its inputs. It does not run, so it is not the next
    # task of its row: it comes after that, or is missing.
    task = next(iter(heads.values()))
    while (other := first_missing(task)) is not None:
        task = other
    remedy = f"Add {task}."
    if task in row_of:
        remedy = f"In row {row_of[task]}, put {task} before {heads[row_of[task]]}."
    return f"The schedule stops after {len(done)} of {len(row_of)} tasks: {stuck}. {remedy}"
