"""One stage at a time, also with several micro-batches each.

    stage 0 |F0                   B0--- F1                   B1---
    stage 1 |   F0          B0---          F1          B1---
    stage 2 |      F0 B0---                   F1 B1---

One stage works while the others wait, and each holds one micro-batch: a baseline for other orders,
and the order for stages that share a device. Each row says only that a stage finishes a
micro-batch before it takes the next. That is enough: stage 0 is the first to need a micro-batch
and the last to finish it, so no other stage can see the next one early.

    group 0 |0F0 0F1 1F0 1F1 1B0---- 1B1---- 0B0---- 0B1---- 0F2 1F2 1B2---- 0B2----

Drawn with three micro-batches, two at a time. It is for stages that share one device, so all tasks
are in one row: with a row for each stage, nothing would make 1F0 wait for 0F1. A stage uses its
weights for several micro-batches in a row, and holds that many micro-batches: batch
serialization.
"""

from collections.abc import Iterator

from millrace.run.schedules.task import Pass, Schedule, Task, check_sizes


def sequential(num_stages: int, num_micro_batches: int) -> Schedule:
    """Lists, stage by stage, the tasks of one weight update.

    Args:
        num_stages: stages in the pipeline, each in a row of its own.
        num_micro_batches: micro-batches accumulated into the update, per replica.

    Returns:
        For each stage a tuple of `2 * num_micro_batches` tasks.

    Raises:
        ScheduleError: if one of the two is below 1.
    """
    check_sizes("Sequential", num_stages=num_stages, num_micro_batches=num_micro_batches)
    return tuple(
        tuple(
            Task(stage, kind, m)
            for m in range(num_micro_batches)
            for kind in (Pass.FORWARD, Pass.BACKWARD)
        )
        for stage in range(num_stages)
    )


def batch_serialized(num_stages: int, num_micro_batches: int, batch_serialization: int) -> Schedule:
    """Lists the tasks of one weight update.

    Args:
        num_stages: stages in the pipeline, all on one device group.
        num_micro_batches: micro-batches accumulated into the update, per replica. If it is
            not a multiple of `batch_serialization`, the last pass over the stages has fewer.
        batch_serialization: micro-batches that a stage runs before the next stage starts. 1 is
            the order of `sequential`.

    Returns:
        One row, of `2 * num_stages * num_micro_batches` tasks. Each stage holds at most
        `batch_serialization` micro-batches.

    Raises:
        ScheduleError: if one of the three is below 1.
    """
    check_sizes(
        "Sequential",
        num_stages=num_stages,
        num_micro_batches=num_micro_batches,
        batch_serialization=batch_serialization,
    )
    return (tuple(_tasks(num_stages, num_micro_batches, batch_serialization)),)


def _tasks(num_stages: int, num_micro_batches: int, batch_serialization: int) -> Iterator[Task]:
    for first in range(0, num_micro_batches, batch_serialization):
        micro_batches = range(first, min(first + batch_serialization, num_micro_batches))
        for stage in range(num_stages):
            yield from (Task(stage, Pass.FORWARD, m) for m in micro_batches)
        for stage in reversed(range(num_stages)):
            yield from (Task(stage, Pass.BACKWARD, m) for m in micro_batches)
