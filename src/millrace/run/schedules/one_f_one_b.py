"""1F1B: once warm, every stage alternates one forward with one backward.

    stage 0 |F0 F1 F2             B0--- F3 B1--- F4 B2---    B3---    B4---
    stage 1 |   F0 F1       B0--- F2 B1--- F3 B2--- F4 B3---    B4---
    stage 2 |      F0 B0--- F1 B1--- F2 B2--- F3 B3--- F4 B4---

The same idea with `run_ahead=2` is the schedule "grouped"; drawn here is `run_ahead=1`.
Source: PipeDream-Flush, Narayanan et al. 2021, arXiv 2006.09503.

In the drawing every arrival is just in time: a transfer that takes time delays both neighbors.
With `slack=1` all stages but the last start with one more forward, and arrivals come early:

    stage 0 |F0 F1 F2 F3          B0--- F4 B1---    B2---    B3---    B4---
    stage 1 |   F0 F1 F2    B0--- F3 B1--- F4 B2---    B3---    B4---
    stage 2 |      F0 B0--- F1 B1--- F2 B2--- F3 B3--- F4 B4---
"""

from millrace.run.schedules.task import Pass, Schedule, Task, check_sizes


def one_f_one_b(
    num_stages: int, num_micro_batches: int, run_ahead: int = 1, slack: int = 0
) -> Schedule:
    """Lists, stage by stage, the tasks of one weight update.

    Args:
        num_stages: stages in the pipeline, each on a device group of its own.
        num_micro_batches: micro-batches accumulated into the update, per replica.
        run_ahead: how many more forwards each stage warms up with than the stage after it.
            1 keeps at most `num_stages - stage` micro-batches in flight. 2 keeps about twice
            as many, and hides the transfers between stages behind them.
        slack: how many more forwards all stages but the last warm up with. 1 hides the transfers
            between two stages, for one micro-batch more in flight at each stage but the last.

    Returns:
        For each stage a tuple of `2 * num_micro_batches` tasks. Idle time is not a task: it
        follows from the dependencies, and `simulate` works it out.

    Raises:
        ScheduleError: if one of the first three is below 1.
    """
    check_sizes(
        "1F1B",
        num_stages=num_stages,
        num_micro_batches=num_micro_batches,
        run_ahead=run_ahead,
    )
    # The last stage owes a backward as soon as it has run a forward. Each stage before it
    # waits for one more trip down the pipeline and back, and fills that wait with forwards.
    return tuple(
        _stage_tasks(
            stage,
            run_ahead * (num_stages - 1 - stage) + slack * (stage < num_stages - 1),
            num_micro_batches,
        )
        for stage in range(num_stages)
    )


def _stage_tasks(stage: int, warmup: int, num_micro_batches: int) -> tuple[Task, ...]:
    warmup = min(warmup, num_micro_batches)  # A short update is over before the wait is.
    steady = num_micro_batches - warmup
    tasks = [Task(stage, Pass.FORWARD, m) for m in range(warmup)]
    for m in range(steady):
        tasks += [Task(stage, Pass.FORWARD, warmup + m), Task(stage, Pass.BACKWARD, m)]
    tasks += [Task(stage, Pass.BACKWARD, m) for m in range(steady, num_micro_batches)]
    return tuple(tasks)
