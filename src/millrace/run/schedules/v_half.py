"""V-Half: about half of the memory of 1F1B, and half of its bubble.

    group 0 |0F0         3F0 0F1 3I0 3W0 3F1 0F2 0I0 3I1 3W1 0W0 3F2     0I1 3I2 3W2 0W1 0I2 0W2
    group 1 |    1F0 2F0         1F1 2F1 2I0 1I0 2W0 1F2 1W0 2F2 2I1 1I1 2W1 1W1 2I2 1I2 2W2 1W2

A group holds up to `num_groups + 2` activation sets, of stages half as long as those of 1F1B, whose
first group holds twice `num_groups` of that length. It is idle for `3 * (num_groups - 1)` forwards
of one stage, where 1F1B is idle for twice as many. Source: Qi et al. 2024, arXiv 2405.15362.
"""

from millrace.run.schedules.task import Schedule
from millrace.run.schedules.v_shape import Pattern, groups_of_v, repeated


def v_half(num_stages: int, num_micro_batches: int) -> Schedule:
    """Lists, group by group, the tasks of one weight update.

    Args:
        num_stages: stages in the pipeline: two on each device group, so an even number. Stage s is
            on the group of stage `num_stages - 1 - s`.
        num_micro_batches: micro-batches accumulated into the update, per replica. Any number
            works; up to a quarter of `num_stages` leaves more idle time.

    Returns:
        For each device group a tuple of `6 * num_micro_batches` tasks. No group holds more than
        `2 * ((num_groups + 2) // 2)` activation sets, each from F to W.

    Raises:
        ScheduleError: if one of the two is below 1, or the number of stages is odd.
    """
    num_groups = groups_of_v("V-Half", num_stages, num_micro_batches)
    # A step out and a step back take 3 units, so a group holds a set for 6 units in each group
    # of the pipeline. The other numbers keep the tasks of a group apart.
    pattern = Pattern(steps=(1, 2, 1, 2), ends=(2, 1 if num_groups % 2 else 4, 1))
    return repeated(pattern, num_groups, num_micro_batches, 2 * ((num_groups + 2) // 2))
