"""The bubble of each schedule as a formula, for p stages and m micro-batches.

    gpipe, 1f1b, grouped   (p - 1) / (m + p - 1)
    looped                 (g - 1) / (v m + g - 1)       g device groups of v = p / g stages
    sequential             (g - 1) / g
    zero_bubble            (p - 1)(F + I - W) / (m (F + I + W) + (p - 1)(F + I - W))

They hold for stages of equal cost and for transfers that take no time; that of `looped` where g
divides p and m; that of `zero_bubble` from m = p on, and where W is no longer than F. Sources:
arXiv 2104.04473, section 2, and arXiv 2401.10241, section 2. `simulate` does not use them: they are
there to compare its results with.
"""


def textbook_bubble(
    name: str,
    num_stages: int,
    num_micro_batches: int,
    num_groups: int,
    forward: float = 1.0,
    backward: float = 2.0,
) -> float | None:
    """Returns the idle share from 0 to 1, or None where there is no formula.

    Args:
        name: of the schedule, as in `SCHEDULES`.
        num_stages: stages in the pipeline.
        num_micro_batches: micro-batches accumulated into the update, per replica.
        num_groups: device groups.
        forward: time of a forward of one stage.
        backward: time of its backward; each half takes half of it.
    """
    p, m, groups = num_stages, num_micro_batches, num_groups
    if name in ("gpipe", "1f1b", "grouped"):
        return (p - 1) / (m + p - 1)
    if name == "sequential":
        return (groups - 1) / groups
    if name == "looped" and p % groups == 0 and m % groups == 0:
        return (groups - 1) / (p // groups * m + groups - 1)
    if name == "zero_bubble" and m >= p and backward / 2 <= forward:
        idle = (p - 1) * forward  # F + I - W, as I and W are equal
        return idle / (m * (forward + backward) + idle)
    return None
