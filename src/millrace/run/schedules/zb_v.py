"""ZB-V: zero bubble with two stages on each device group, and as much memory as 1F1B.

    group 0 |0F0 0F1     3F0 3I0 0F2 3W0 3F1 3I1 0I0 3W1 3F2 3I2 0I1 3W2 0I2 0W0 0W1 0W2
    group 1 |    1F0 2F0 1F1 2F1 2I0 1I0 2W0 1F2 1W0 2F2 2I1 1I1 2I2 1I2 2W1 2W2 1W1 1W2

The last group waits for its first forward, and then no group waits any more: from `num_groups`
micro-batches on, each is idle for `num_groups - 1` forwards of one stage. Each holds up to
`2 * num_groups` activation sets, of stages half as long as those of 1F1B, whose first group holds
as much. Source: Qi et al. 2023, arXiv 2401.10241; the pattern is V-ZB of arXiv 2405.15362.
"""

from millrace.run.schedules.task import Schedule
from millrace.run.schedules.v_shape import Pattern, groups_of_v, repeated


def zb_v(num_stages: int, num_micro_batches: int) -> Schedule:
    """Lists, group by group, the tasks of one weight update.

    Args:
        num_stages: stages in the pipeline: two on each device group, so an even number. Stage s is
            on the group of stage `num_stages - 1 - s`.
        num_micro_batches: micro-batches accumulated into the update, per replica. Any number
            works; fewer than half of `num_stages` leave more idle time.

    Returns:
        For each device group a tuple of `6 * num_micro_batches` tasks. No group holds more than
        `num_stages` activation sets, each from F to W.

    Raises:
        ScheduleError: if one of the two is below 1, or the number of stages is odd.
    """
    num_groups = groups_of_v("ZB-V", num_stages, num_micro_batches)
    # A step out and a step back take 6 units, twice as many as in V-Half. So each F and I may come
    # later than its time in the pattern, as it does where transfers take time, and nobody waits.
    pattern = Pattern(steps=(2, 4, 2, 4), ends=(1, 1, 1))
    return repeated(pattern, num_groups, num_micro_batches, num_stages)
