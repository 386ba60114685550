"""V-Min: about a third of the memory of 1F1B, and two thirds of its bubble.

    group 0 |0F0         3F0 3I0 0F1 3W0 0I0 0W0 3F1 3I1 0F2 3W1 0I1 0W1 3F2 3I2 3W2     0I2 0W2
    group 1 |    1F0 2F0         2I0 1I0 1F1 2F1 2W0 1W0 2I1 1I1 1F2 2F2 2W1 1W1 2I2 1I2 2W2 1W2

A micro-batch goes through the pipeline without a stop, and the next one starts 6 forwards later, so
it is in flight for the shortest time. A group holds up to `2 * ((num_groups + 4) // 3)` activation
sets, of stages half as long as those of 1F1B, whose first group holds twice `num_groups` of that
length. It is idle for `4 * num_groups - 5` forwards of one stage, where 1F1B is idle for
`6 * (num_groups - 1)`. Stages of unequal cost and transfers delay every micro-batch, more than in
the other schedules. Source: Qi et al. 2024, arXiv 2405.15362.
"""

from millrace.run.schedules.task import Schedule
from millrace.run.schedules.v_shape import Pattern, groups_of_v, repeated


def v_min(num_stages: int, num_micro_batches: int) -> Schedule:
    """Lists, group by group, the tasks of one weight update.

    Args:
        num_stages: stages in the pipeline: two on each device group, so an even number. Stage s is
            on the group of stage `num_stages - 1 - s`.
        num_micro_batches: micro-batches accumulated into the update, per replica. Any number
            works.

    Returns:
        For each device group a tuple of `6 * num_micro_batches` tasks. No group holds more than
        `2 * ((num_groups + 4) // 3)` activation sets, each from F to W.

    Raises:
        ScheduleError: if one of the two is below 1, or the number of stages is odd.
    """
    num_groups = groups_of_v("V-Min", num_stages, num_micro_batches)
    # With a multiple of 3 groups two tasks of a group would come at the same time.
    ends = (1, 1, 1) if num_groups % 3 else (3, 1, 3)
    pattern = Pattern(steps=(1, 1, 1, 1), ends=ends)
    return repeated(pattern, num_groups, num_micro_batches, 2 * ((num_groups + 4) // 3))
