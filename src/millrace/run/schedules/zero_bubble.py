"""Zero bubble: 1F1B with backward in halves, one of which fills idle time.

    stage 0 |F0 F1 F2       I0 W0 F3 I1 W1 F4 I2 W2 I3 W3 I4 W4
    stage 1 |   F0 F1    I0 F2 I1 W0 F3 I2 W1 F4 I3 W2 I4 W3 W4
    stage 2 |      F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 F4 I4 W2 W3 W4

The stage before waits for I, the half that computes the cotangents of the inputs. No stage waits
for W, the half that computes the gradients of the weights, so it runs where 1F1B is idle. With F, I
and W of equal length, the idle time of a device group falls from `3 * (num_stages - 1)` to a third.
Source: schedule ZB-H1 of Qi et al. 2023, arXiv 2401.10241, section 2.
"""

from millrace.run.schedules.task import Pass, Schedule, Task, check_sizes


def zero_bubble(num_stages: int, num_micro_batches: int) -> Schedule:
    """Lists, stage by stage, the tasks of one weight update.

    Args:
        num_stages: stages in the pipeline, each on a device group of its own.
        num_micro_batches: micro-batches accumulated into the update, per replica. Fewer than
            `num_stages` work, and leave more idle time than the drawing.

    Returns:
        For each stage a tuple of `3 * num_micro_batches` tasks. No stage holds more than
        `num_stages` micro-batches, which is what the first stage of 1F1B holds.

    Raises:
        ScheduleError: if one of the two is below 1.
    """
    check_sizes("Zero bubble", num_stages=num_stages, num_micro_batches=num_micro_batches)
    return tuple(
        _stage_tasks(stage, num_stages - 1 - stage, num_micro_batches)
        for stage in range(num_stages)
    )


def _stage_tasks(stage: int, warmup: int, num_micro_batches: int) -> tuple[Task, ...]:
    # Stage s warms up with s forwards fewer than stage 0. In their place it may hold s
    # micro-batches longer, so its W follow its I at a distance of s. Those left at the end fill
    # the time in which the stages before it still wait for each other.
    lag = stage
    tasks = [Task(stage, Pass.FORWARD, m) for m in range(min(warmup, num_micro_batches))]
    for m in range(num_micro_batches):
        if warmup + m < num_micro_batches:
            tasks.append(Task(stage, Pass.FORWARD, warmup + m))
        tasks.append(Task(stage, Pass.BACKWARD_INPUT, m))
        if m >= lag:
            tasks.append(Task(stage, Pass.BACKWARD_WEIGHT, m - lag))
    late = range(max(0, num_micro_batches - lag), num_micro_batches)
    tasks += [Task(stage, Pass.BACKWARD_WEIGHT, m) for m in late]
    return tuple(tasks)
