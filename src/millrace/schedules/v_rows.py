"""V-shaped schedules as arrays: each unit of time is one operation on the numbers of all groups.

The rows are those of `v_shape.repeated`; a test compares them.
"""

import numpy as np

from millrace.schedules.rows import PASSES, ScheduleRows, TaskNumbers
from millrace.schedules.v_shape import INTERVAL, PATHS, TASKS, Pattern, no_memory, source_of

_NO_PATH = INTERVAL  # of a group that has run all its F and I: nothing is ready for it
_FIRST_WEIGHT, _SECOND_WEIGHT = range(PATHS, INTERVAL)


def repeated_rows(
    pattern: Pattern, num_groups: int, num_micro_batches: int, max_sets: int
) -> ScheduleRows:
    """Repeats a pattern for each micro-batch; the arguments are those of `repeated`.

    Raises:
        ScheduleError: if the memory is not enough.
    """
    groups = np.arange(num_groups)
    orders = _orders(pattern, num_groups, num_micro_batches)
    sources = _sources(num_groups)
    # A column more for `_NO_PATH`, and a cell at the end for the first task of a micro-batch,
    # which waits for nothing.
    cells = np.zeros(num_groups * (INTERVAL + 1) + 1, np.int64)
    cells[-1] = num_micro_batches
    done = cells[:-1].reshape(num_groups, INTERVAL + 1)
    paths = np.zeros((num_groups, INTERVAL * num_micro_batches), np.int8)
    counts = np.zeros((num_groups, INTERVAL * num_micro_batches), np.int32)
    length = np.zeros(num_groups, np.int64)
    left = paths.size
    while left:
        ordered = orders[groups, done[:, :PATHS].sum(axis=1)]
        held = done[:, 0] + done[:, 1] - done[:, _FIRST_WEIGHT] - done[:, _SECOND_WEIGHT]
        can_run = cells[sources[groups, ordered]] > done[groups, ordered]
        can_run &= (ordered > 1) | (held < max_sets)
        path = np.where(can_run, ordered, _NO_PATH)
        for weights in (_SECOND_WEIGHT, _FIRST_WEIGHT):
            is_next = ~can_run & (done[:, weights - 2] > done[:, weights])
            path[is_next] = weights
        running = np.flatnonzero(path != _NO_PATH)
        if not running.size:
            raise no_memory(max_sets, num_groups)
        path = path[running]
        where = running, length[running]
        paths[where], counts[where] = path, done[running, path]
        done[running, path] += 1
        length[running] += 1
        left -= running.size
    return _rows(paths, counts)


def _rows(paths: TaskNumbers, counts: TaskNumbers) -> ScheduleRows:
    num_groups, length = int(paths.shape[0]), int(paths.shape[1])
    on_way_back, kinds = zip(*TASKS, strict=True)
    group = np.arange(num_groups, dtype=np.int32)[:, None]
    is_back = np.array(on_way_back)[paths]
    return ScheduleRows(
        np.array([PASSES.index(kind) for kind in kinds], np.int8)[paths].ravel(),
        np.where(is_back, 2 * num_groups - 1 - group, group).ravel(),
        counts.ravel(),
        np.arange(num_groups + 1, dtype=np.int64) * length,
    )


def _orders(pattern: Pattern, num_groups: int, num_micro_batches: int) -> TaskNumbers:
    """Returns the path of each F and I of each group, by their times, and `_NO_PATH` at the end."""
    starts = np.array(pattern.starts(num_groups))
    times = starts[:, :, None] + INTERVAL * np.arange(num_micro_batches)
    keys = times * PATHS + np.arange(PATHS)[None, :, None]
    keys = np.sort(keys.reshape(num_groups, -1), axis=1)
    ends = np.full((num_groups, 1), _NO_PATH)
    return np.concatenate([keys % PATHS, ends], axis=1).astype(np.int8)


def _sources(num_groups: int) -> TaskNumbers:
    """Returns the cell of the task before, for each group and path."""
    sources = np.full((num_groups, INTERVAL + 1), num_groups * (INTERVAL + 1))
    for group in range(num_groups):
        for path in range(INTERVAL):
            if (source := source_of(group, path, num_groups)) is not None:
                sources[group, path] = source[0] * (INTERVAL + 1) + source[1]
        sources[group, _NO_PATH] = group * (INTERVAL + 1) + _NO_PATH  # never done
    return sources
