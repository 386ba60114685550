"""GPipe: all forwards, then all backwards.

    stage 0 |F0 F1 F2 F3                   B0--- B1--- B2--- B3---
    stage 1 |   F0 F1 F2 F3          B0--- B1--- B2--- B3---
    stage 2 |      F0 F1 F2 F3 B0--- B1--- B2--- B3---

The simplest order. It takes as long as 1F1B and the most memory: every stage keeps the activations
of all micro-batches. Source: Huang et al. 2018, arXiv 1811.06965. There the backwards
run from the last micro-batch to the first; here they go in order, so that every schedule adds
gradients in the same order.
"""

from millrace.run.schedules.task import Pass, Schedule, Task, check_sizes


def gpipe(num_stages: int, num_micro_batches: int) -> Schedule:
    """Lists, stage by stage, the tasks of one weight update.

    Args:
        num_stages: stages in the pipeline, each on a device group of its own.
        num_micro_batches: micro-batches accumulated into the update, per replica.

    Returns:
        For each stage a tuple of `2 * num_micro_batches` tasks.

    Raises:
        ScheduleError: if one of the two is below 1.
    """
    check_sizes("GPipe", num_stages=num_stages, num_micro_batches=num_micro_batches)
    return tuple(
        tuple(
            Task(stage, kind, m)
            for kind in (Pass.FORWARD, Pass.BACKWARD)
            for m in range(num_micro_batches)
        )
        for stage in range(num_stages)
    )
