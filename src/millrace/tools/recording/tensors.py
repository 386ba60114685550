"""The statistics of watched tensors, thinned so that a long run leaves a few thousand rows of each.

epoch     1      2      3     ...  10    ...  100
rows      500    250    166        50         5        at most, of one tensor

Where rows are left out, one of several neighbours stays: the one with NaNs or infinities, or else
the largest element. The first and the last row of an epoch stay.
"""

import itertools
from collections.abc import Sequence

import numpy as np

from millrace.base.records.tensors import COUNTS, STATISTICS, Tensor, TensorSeries

ROWS = 500  # of the first epoch, for each tensor
LEAST = 3  # of any epoch that is written: the first, the largest, the last
EPOCHS = 500  # that are all written; of later ones, one in so many: number / EPOCHS

_MIN, _MAX = STATISTICS.index("min"), STATISTICS.index("max")


class RecordedTensors:
    """The rows of an epoch that is running."""

    def __init__(self) -> None:
        self._rows: dict[Tensor, list[tuple[np.ndarray, np.ndarray]]] = {}
        self._epochs = 0  # that were written
        self._skipped = 0  # since the last one that was written

    def add(self, tensors: Sequence[Tensor], steps: np.ndarray, values: np.ndarray) -> None:
        """Adds rows.

        Args:
            tensors: of the columns.
            steps: `[entries]`, over all epochs and fits.
            values: `[entries, tensors, statistics]`.
        """
        for index, tensor in enumerate(tensors):
            rows = self._rows.setdefault(tensor, [])
            rows.append((steps, values[:, index]))
            if len(rows) >= ROWS:  # of an epoch of many executions
                self._rows[tensor] = [_fewer(rows, ROWS)]

    def series(self, model: str, epoch: int) -> list[TensorSeries]:
        """Returns the records of an epoch that has ended, and forgets its rows.

        Args:
            model: its name.
            epoch: from 1.
        """
        rows, self._rows = self._rows, {}
        if not rows:
            return []
        self._skipped += 1
        is_written = self._skipped * EPOCHS > self._epochs + self._skipped
        if not is_written and self._epochs >= EPOCHS and not _has_non_finite(rows):
            return []
        self._epochs, self._skipped = self._epochs + self._skipped, 0
        most = max(ROWS // self._epochs, LEAST)
        thinned = {tensor: _fewer(each, most) for tensor, each in rows.items()}
        return [
            TensorSeries(
                model=model,
                tensor=tensor,
                epoch=epoch,
                steps=tuple(map(int, steps)),
                values=tuple(tuple(map(float, row)) for row in values),
            )
            for tensor, (steps, values) in thinned.items()
        ]


def _has_non_finite(rows: dict[Tensor, list[tuple[np.ndarray, np.ndarray]]]) -> bool:
    return any((values[:, COUNTS] > 0).any() for each in rows.values() for _, values in each)


def _fewer(
    rows: Sequence[tuple[np.ndarray, np.ndarray]], most: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns at most `most` rows, but at least the first and the last one."""
    steps = np.concatenate([each for each, _ in rows])
    values = np.concatenate([each for _, each in rows])
    if len(steps) <= most:
        return steps, values
    height = np.nan_to_num(np.maximum(np.abs(values[:, _MIN]), np.abs(values[:, _MAX])), nan=0.0)
    height = np.where((values[:, COUNTS] > 0).any(axis=1), np.inf, height)
    bounds = np.linspace(1, len(steps) - 1, max(most - 2, 0) + 1).astype(int)
    inner = [
        begin + int(np.argmax(height[begin:end]))
        for begin, end in itertools.pairwise(bounds)
        if end > begin
    ]
    kept = np.array([0, *inner, len(steps) - 1])
    return steps[kept], values[kept]
