"""Proof that a pipeline can run a schedule, and that the schedule is a complete update.

    0F0 0B0 / 1B0 1F0     1B0 waits for 1F0, which its row has later
    0F0 0B0 / 1F0         1B0 is missing
    0F1 0F0 ...           micro-batches out of order: gradients would add up differently

The check precedes all compilation, so that a running pipeline needs no checks.
"""

from collections.abc import Iterator

from millrace.errors import ScheduleError
from millrace.run.schedules.simulate import UNIT_COST, simulate
from millrace.run.schedules.task import Pass, Schedule, Task


def check(schedule: Schedule, num_stages: int, num_micro_batches: int) -> None:
    """Checks that the schedule is complete, ordered and free of deadlock.

    Args:
        schedule: rows of tasks, one for each device group.
        num_stages: stages of the pipeline.
        num_micro_batches: micro-batches accumulated into the update, per replica.

    Raises:
        ScheduleError: if a task is unknown, missing, doubled or out of order, if a stage is in
            two rows, or if rows wait for each other. The message names the task to change.
    """
    _check_range(schedule, num_stages, num_micro_batches)
    _check_rows(schedule)
    _check_complete(schedule, num_stages, num_micro_batches)
    _check_order(schedule, num_stages)
    simulate(schedule, UNIT_COST)  # raises at a deadlock, whatever the costs


def _tasks(schedule: Schedule) -> Iterator[tuple[int, Task]]:
    return ((index, task) for index, row in enumerate(schedule) for task in row)


def _check_range(schedule: Schedule, num_stages: int, num_micro_batches: int) -> None:
    for row, task in _tasks(schedule):
        if not 0 <= task.stage < num_stages:
            raise ScheduleError(
                f"Row {row} has {task}, of stage {task.stage}. With {num_stages} in the pipeline "
                f"they go from 0 to {num_stages - 1}. Remove the task, or assign more stages."
            )
        m = task.micro_batch
        if not 0 <= m < num_micro_batches:
            raise ScheduleError(
                f"Row {row} has {task}, of micro-batch {m}. With "
                f"{num_micro_batches} in the update they go from 0 to {num_micro_batches - 1}. "
                f"Remove the task, or set gradient_accumulation_steps_per_replica={m + 1}."
            )


def _check_rows(schedule: Schedule) -> None:
    seen: dict[Task, int] = {}
    home: dict[int, tuple[int, Task]] = {}
    for row, task in _tasks(schedule):
        if task in seen:
            raise ScheduleError(
                f"{task} is there twice, in row {seen[task]} and in row {row}. Remove one of them."
            )
        first_row, first = home.setdefault(task.stage, (row, task))
        if first_row != row:
            raise ScheduleError(
                f"Stage {task.stage} has {first} in row {first_row} and {task} in row {row}. Its "
                f"weights are on one device group: put all its tasks into row {first_row}."
            )
        seen[task] = row


def _check_complete(schedule: Schedule, num_stages: int, num_micro_batches: int) -> None:
    tasks = {task for _, task in _tasks(schedule)}
    for stage in range(num_stages):
        for m in range(num_micro_batches):
            forward, whole, inputs, weights = (Task(stage, kind, m) for kind in Pass)
            halves = {inputs, weights} & tasks
            if whole in tasks and halves:
                raise ScheduleError(
                    f"{whole} is the whole backward, and {_words(halves)} would repeat it. Keep "
                    f"either {whole}, or both {inputs} and {weights}."
                )
            needed = {forward, inputs, weights} if halves else {forward, whole}
            if missing := needed - tasks:
                raise ScheduleError(
                    f"The schedule lacks {_words(missing)}. Each of the {num_stages} stages needs "
                    "one F, and one B or one I and one W, for each of the "
                    f"{num_micro_batches} micro-batches. Add {_words(missing)}."
                )


def _check_order(schedule: Schedule, num_stages: int) -> None:
    # Whole and half backwards count together: a stage adds up and passes on the same values.
    for kinds in (
        {Pass.FORWARD},
        {Pass.BACKWARD, Pass.BACKWARD_INPUT},
        {Pass.BACKWARD, Pass.BACKWARD_WEIGHT},
    ):
        before: list[Task | None] = [None] * num_stages
        for row, task in _tasks(schedule):
            if task.kind not in kinds:
                continue
            previous = before[task.stage]
            if previous is not None and previous.micro_batch > task.micro_batch:
                raise ScheduleError(
                    f"Row {row} has {previous} before {task}. A stage takes micro-batches in "
                    "order, so that all schedules add gradients in the same order. "
                    f"Put {task} before {previous}."
                )
            before[task.stage] = task


def _words(tasks: set[Task]) -> str:
    return " and ".join(sorted(map(str, tasks)))
