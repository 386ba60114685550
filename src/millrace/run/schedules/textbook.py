"""The bubble of each schedule as a formula, for p stages and m micro-batches.

    gpipe, 1f1b, 1f1b_slack, grouped   (p - 1) / (m + p - 1)
    looped                 (g - 1) / (v m + g - 1)       g device groups of v = p / g stages
    sequential             (g - 1) / g
    zero_bubble            (p - 1)(F + I - W) / (m (F + I + W) + (p - 1)(F + I - W))
    zb_v                   (g - 1) / (6 m + g - 1)       two stages on each of g groups
    v_half                 3 (g - 1) / (6 m + 3 (g - 1)) one F less if g is odd
    v_min                  (4 g - 5) / (6 m + 4 g - 5)   for g > 1

They hold for stages of equal cost and for transfers that take no time; that of `looped` where g
divides p and m; that of `zero_bubble` from m = p on, and where W is no longer than F; the last
three for F, I and W of equal length, that of `zb_v` from m = g on and that of `v_half` for
m > g / 2. Sources: arXiv 2104.04473, section 2, and arXiv 2401.10241, section 2. The last three are
exact where arXiv 2405.15362 gives 0, g / 2m and 2g / 3m. `simulate` does not use them: they are
there to compare its results with.
"""

from millrace.base.options.default_devices import V_SHAPED


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
    if name in ("gpipe", "1f1b", "1f1b_slack", "grouped"):
        return (p - 1) / (m + p - 1)
    if name == "sequential":
        return (groups - 1) / groups
    if name == "looped" and p % groups == 0 and m % groups == 0:
        return (groups - 1) / (p // groups * m + groups - 1)
    if name == "zero_bubble" and m >= p and backward / 2 <= forward:
        idle = (p - 1) * forward  # F + I - W, as I and W are equal
        return idle / (m * (forward + backward) + idle)
    if name in V_SHAPED and p == 2 * groups and backward == 2 * forward:
        idle = _idle_forwards(name, m, groups)
        return None if idle is None else idle / (6 * m + idle)
    return None


def _idle_forwards(name: str, m: int, groups: int) -> int | None:
    """Returns the idle time of a group in a V-shaped schedule, in forwards of one stage."""
    if groups == 1:
        return 0
    if name == "v_min":
        return 4 * groups - 5
    if name == "v_half":
        return 3 * (groups - 1) - groups % 2 if 2 * m > groups else None
    return groups - 1 if m >= groups else None
