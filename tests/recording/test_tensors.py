"""Statistics of tensors over long runs: few rows, with the extremes."""

import numpy as np
import pytest

from millrace.base.records.tensors import STATISTICS, Tensor
from millrace.tools.recording.tensors import RecordedTensors

TENSOR = Tensor("gradient", "dense/kernel")
MAX, NANS = STATISTICS.index("max"), STATISTICS.index("nans")


def rows_of(epochs, steps, change=lambda epoch, values: None, parts=1):
    """The rows that are kept of each epoch, of a run of `epochs` with `steps` in each."""
    recorded, kept = RecordedTensors(), {}
    for epoch in range(1, epochs + 1):
        values = np.full((steps, 1, len(STATISTICS)), 0.5)
        values[..., NANS:] = 0
        change(epoch, values)
        numbers = (epoch - 1) * steps + np.arange(steps)
        for part in np.array_split(np.arange(steps), parts):
            recorded.add([TENSOR], numbers[part], values[part])
        for series in recorded.series("mlp", epoch):
            kept[series.epoch] = series
    return kept


def test_a_short_run_keeps_every_row():
    kept = rows_of(epochs=3, steps=150)
    assert [each.steps for each in kept.values()] == [
        tuple(range(begin, begin + 150)) for begin in (0, 150, 300)
    ]


@pytest.mark.parametrize(("epochs", "steps", "parts"), [(1, 50_000, 2500), (3000, 50, 1)])
def test_a_long_run_keeps_a_few_thousand_rows(epochs, steps, parts):
    kept = rows_of(epochs, steps, parts=parts)
    assert sum(len(each.steps) for each in kept.values()) < 8_000
    assert 1 in kept
    first = kept[1].steps
    assert (first[0], first[-1]) == (0, steps - 1)
    assert list(first) == sorted(set(first))


def test_the_largest_element_and_nans_are_kept():
    def early(epoch, values):
        values[777, 0, MAX] = 1e6
        values[4321, 0, NANS] = 3

    def late(epoch, values):
        if epoch == 2999:
            values[7, 0, NANS] = 1

    one = rows_of(1, 20_000, early, parts=1500)[1]
    assert {777, 4321} <= set(one.steps)
    assert one.values[one.steps.index(777)][MAX] == 1e6
    assert 2998 * 20 + 7 in rows_of(2999, 20, late)[2999].steps
