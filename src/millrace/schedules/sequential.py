"""Sequential: one micro-batch at a time, through all stages and back.

    stage 0 |F0                   B0--- F1                   B1---
    stage 1 |   F0          B0---          F1          B1---
    stage 2 |      F0 B0---                   F1 B1---

One stage works while the others wait, and each holds one micro-batch: a baseline for other orders,
and the order for stages that share a device. Each row says only that a stage finishes a
micro-batch before it takes the next. That is enough: stage 0 is the first to need a micro-batch
and the last to finish it, so no other stage can see the next one early.
"""

from millrace.schedules.task import Pass, Schedule, Task, check_sizes


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
