"""The schedules by name as arrays: each task by its position in its row, without a loop over tasks.

    1f1b, w forwards of warm-up, M micro-batches      F0 F1 F2 B0 F3 B1 F4 B2 B3 B4     w = 2, M = 5
    F m    at m, from m = w on after m - w backwards  0  1  2     4     6
    B m    after w + m + 1 forwards, at most M                 3     5     7  8  9

The rows are those of the functions in `SCHEDULES`; a test compares them for many sizes.
"""

from collections.abc import Callable, Mapping

import numpy as np

from millrace.schedules.looped import check_looped
from millrace.schedules.rows import RowsAtPositions, ScheduleRows, TaskNumbers
from millrace.schedules.task import Pass, check_sizes
from millrace.schedules.v_half import v_half_pattern
from millrace.schedules.v_min import v_min_pattern
from millrace.schedules.v_rows import repeated_rows
from millrace.schedules.zb_v import zb_v_pattern


def make_rows(name: str, num_stages: int, num_micro_batches: int, num_groups: int) -> ScheduleRows:
    """Makes a schedule of `SCHEDULES` as arrays.

    Args:
        name: a key of `SCHEDULES`.
        num_stages: stages in the pipeline.
        num_micro_batches: micro-batches accumulated into the update, per replica.
        num_groups: device groups; only "looped" reads it.

    Raises:
        ScheduleError: if there is no such schedule of these sizes.
    """
    if name == "looped":
        return _looped(num_stages, num_micro_batches, num_groups)
    check_sizes(name, num_stages=num_stages, num_micro_batches=num_micro_batches)
    return _MAKERS[name](num_stages, num_micro_batches)


def _on_rows(num_stages: int, positions: Mapping[Pass, TaskNumbers]) -> ScheduleRows:
    """Returns rows of one stage each.

    Args:
        num_stages: stages in the pipeline.
        positions: of each pass, `[stages or 1, micro-batches]`.
    """
    num_micro_batches = next(iter(positions.values())).shape[1]
    rows = RowsAtPositions(num_stages, len(positions) * num_micro_batches)
    stages = np.arange(num_stages)
    for kind, each in positions.items():
        rows.put(kind, stages, stages, np.broadcast_to(each, (num_stages, num_micro_batches)))
    return rows.packed()


def _gpipe(num_stages: int, num_micro_batches: int) -> ScheduleRows:
    m = np.arange(num_micro_batches)[None]
    return _on_rows(num_stages, {Pass.FORWARD: m, Pass.BACKWARD: num_micro_batches + m})


def _sequential(num_stages: int, num_micro_batches: int) -> ScheduleRows:
    m = np.arange(num_micro_batches)[None]
    return _on_rows(num_stages, {Pass.FORWARD: 2 * m, Pass.BACKWARD: 2 * m + 1})


def _one_f_one_b(
    num_stages: int, num_micro_batches: int, run_ahead: int = 1, slack: int = 0
) -> ScheduleRows:
    m = np.arange(num_micro_batches)[None]
    later = np.arange(num_stages)[::-1, None]  # stages
    warmup = run_ahead * later + slack * (later > 0)
    return _on_rows(num_stages, _alternate(m, m, np.minimum(warmup, m.size), m.size))


def _grouped(num_stages: int, num_micro_batches: int) -> ScheduleRows:
    return _one_f_one_b(num_stages, num_micro_batches, run_ahead=2)


def _with_slack(num_stages: int, num_micro_batches: int) -> ScheduleRows:
    return _one_f_one_b(num_stages, num_micro_batches, slack=1)


def _alternate(
    forward: TaskNumbers, backward: TaskNumbers, warmup: TaskNumbers, count: int
) -> dict[Pass, TaskNumbers]:
    """Returns the positions of a row that warms up with forwards, and then alternates.

    Args:
        forward: number of each forward, in the order in which the row runs them.
        backward: number of each backward, in the order in which the row runs them.
        warmup: forwards before the first backward and its forward.
        count: forwards of the row.
    """
    return {
        Pass.FORWARD: np.maximum(forward, 2 * forward - warmup),
        Pass.BACKWARD: backward + np.minimum(warmup + backward + 1, count),
    }


def _zero_bubble(num_stages: int, num_micro_batches: int) -> ScheduleRows:
    m, count = np.arange(num_micro_batches)[None], num_micro_batches
    lag = np.arange(num_stages)[:, None]  # see zero_bubble.py
    warmup = num_stages - 1 - lag
    pairs = np.maximum(m - warmup, 0)  # of a forward and an I, before a forward
    return _on_rows(
        num_stages,
        {
            Pass.FORWARD: m + pairs + np.maximum(pairs - lag, 0),
            Pass.BACKWARD_INPUT: np.minimum(warmup + m + 1, count) + m + np.maximum(m - lag, 0),
            Pass.BACKWARD_WEIGHT: np.minimum(warmup + lag + m + 1, count)
            + np.minimum(lag + m + 1, count)
            + m,
        },
    )


def _looped(num_stages: int, num_micro_batches: int, num_groups: int) -> ScheduleRows:
    sizes = check_looped(num_stages, num_micro_batches, num_groups)
    rounds, size = sizes.rounds, sizes.part_size
    count = rounds * size * sizes.num_parts  # with the tasks beyond the sizes
    stages = np.arange(num_stages)
    round_, group = stages[:, None] // num_groups, stages[:, None] % num_groups
    part, within = np.divmod(np.arange(num_micro_batches)[None], size)
    warmup = np.minimum(2 * (num_groups - 1 - group) + (rounds - 1) * size, count)
    forward = (part * rounds + round_) * size + within
    backward = (part * rounds + rounds - 1 - round_) * size + within
    rows = RowsAtPositions(num_groups, 2 * count)
    for kind, positions in _alternate(forward, backward, warmup, count).items():
        rows.put(kind, group[:, 0], stages, positions)
    return rows.packed()


_MAKERS: Mapping[str, Callable[[int, int], ScheduleRows]] = {
    "gpipe": _gpipe,
    "1f1b": _one_f_one_b,
    "1f1b_slack": _with_slack,
    "grouped": _grouped,
    "sequential": _sequential,
    "zero_bubble": _zero_bubble,
    "zb_v": lambda p, m: repeated_rows(*zb_v_pattern(p, m)),
    "v_half": lambda p, m: repeated_rows(*v_half_pattern(p, m)),
    "v_min": lambda p, m: repeated_rows(*v_min_pattern(p, m)),
}
