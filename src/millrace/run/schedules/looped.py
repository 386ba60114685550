"""Looped: several stages on each device group, so that a micro-batch goes round more than once.

    group 0 |0F0 0F1 2F0 2F1         2B0----     2B1---- 0B0---- 0B1----
    group 1 |    1F0 1F1 3F0 3B0---- 3F1 3B1---- 1B0---- 1B1----

Stage s is on device group s % num_groups. With v stages on each group a stage is a v-th as long,
and so is the time in which a group waits for its first micro-batch: the bubble is
`(p - 1) / (v * m + p - 1)` for p groups and m micro-batches. The price is v times the transfers.
Source: the interleaved schedule of Narayanan et al. 2021, arXiv 2104.04473, section 2.2.
"""

from collections.abc import Sequence

from millrace.errors import ScheduleError
from millrace.run.schedules.task import Pass, Schedule, Task, check_sizes


def looped(num_stages: int, num_micro_batches: int, num_groups: int) -> Schedule:
    """Lists, group by group, the tasks of one weight update.

    Args:
        num_stages: stages in the pipeline. If it is not a multiple of `num_groups`, the last groups
            have one stage less.
        num_micro_batches: micro-batches accumulated into the update, per replica. The bubble
            above needs a multiple of `num_groups`; other numbers idle a little more.
        num_groups: device groups.

    Returns:
        For each device group the tasks of all its stages, in the order in which it runs them.

    Raises:
        ScheduleError: if one of the three is below 1, or a group would have no stage.
    """
    check_sizes(
        "Looped",
        num_stages=num_stages,
        num_micro_batches=num_micro_batches,
        num_groups=num_groups,
    )
    if num_groups > num_stages:
        raise ScheduleError(
            f"num_groups={num_groups} device groups cannot share num_stages={num_stages} stages: "
            f"{num_groups - num_stages} of them would have none. Use {num_stages} groups or fewer."
        )
    # Micro-batches go through one stage of a group in parts of `num_groups`, so that the first of a
    # part is back when the last has left. If their number is not a multiple of that, larger parts
    # idle less than a short one at the end.
    num_parts = max(1, num_micro_batches // num_groups)
    part_size = -(-num_micro_batches // num_parts)
    parts = [range(part_size * k, part_size * (k + 1)) for k in range(num_parts)]
    rounds = -(-num_stages // num_groups)  # stages of the first group
    return tuple(
        tuple(
            task
            for task in _group_tasks(group, num_groups, rounds, parts)
            # Tasks beyond the sizes come last in the pipeline or the update: none waits for them.
            if task.stage < num_stages and task.micro_batch < num_micro_batches
        )
        for group in range(num_groups)
    )


def _group_tasks(group: int, num_groups: int, rounds: int, parts: Sequence[range]) -> list[Task]:
    stages = [group + num_groups * r for r in range(rounds)]
    forwards: list[Task] = []
    backwards: list[Task] = []
    for micro_batches in parts:
        forwards += [Task(s, Pass.FORWARD, m) for s in stages for m in micro_batches]
        backwards += [Task(s, Pass.BACKWARD, m) for s in reversed(stages) for m in micro_batches]
    # The first backward is that of the last stage, so all rounds but one come before it. After them
    # it is 1F1B with a run-ahead of 2, for the way down the pipeline and back.
    warmup = min(2 * (num_groups - 1 - group) + (rounds - 1) * len(parts[0]), len(forwards))
    steady = len(forwards) - warmup
    tasks = forwards[:warmup]
    for forward, backward in zip(forwards[warmup:], backwards[:steady], strict=True):
        tasks += [forward, backward]
    return tasks + backwards[steady:]
