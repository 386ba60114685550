"""Statistics of tensors over the whole training, as columns.

StatisticsBlock  ->  Entries, Entries, ...   one for each block and kind; the oldest are dropped
                 ->  columns()               a row for each tensor of each entry, in order
"""

import warnings
from collections import deque
from dataclasses import dataclass

import numpy as np
from jax.typing import DTypeLike

from millrace.base.records.tensors import STATISTICS, Tensor

COUNTS = ("nans", "infs")


@dataclass(slots=True, eq=False)
class Epoch:
    """The steps and updates of an epoch, numbered over the whole training."""

    number: int  # as Keras counts epochs
    update_steps: int  # steps of an update; the last update of an epoch may have fewer
    first_step: int = 0
    first_update: int = 0
    iterations: int | None = None  # of the optimizer at the beginning; None if not needed
    steps: int = 0  # so far; 0 if they are not counted yet
    updates: int = 0  # so far


@dataclass(frozen=True, slots=True, eq=False)
class Entries:
    """Statistics of consecutive micro-batches or updates of an epoch."""

    epoch: Epoch
    of_updates: bool
    numbers: np.ndarray  # [entries], numbers of micro-batches or updates within the epoch
    tensors: tuple[Tensor, ...]
    values: np.ndarray  # [entries, tensors, statistics]
    histograms: np.ndarray | None = None  # [entries, tensors, bins], only for TensorBoard

    @property
    def rows(self) -> int:
        """Number of rows: one for each tensor of each entry."""
        return len(self.numbers) * len(self.tensors)

    @property
    def updates(self) -> np.ndarray:
        """The update of each entry or of its micro-batch, numbered over all epochs."""
        within = self.numbers if self.of_updates else self.numbers // self.epoch.update_steps
        return self.epoch.first_update + within

    @property
    def steps(self) -> np.ndarray:
        """The micro-batch of each entry, for an update its last one, numbered over all epochs."""
        within = self.numbers
        if self.of_updates:
            within = (self.numbers + 1) * self.epoch.update_steps - 1
            if self.epoch.steps:
                within = np.minimum(within, self.epoch.steps - 1)
        return self.epoch.first_step + within

    def without_first(self, count: int) -> "Entries":
        """Returns the entries without the oldest `count` of them."""
        return Entries(
            self.epoch, self.of_updates, self.numbers[count:], self.tensors, self.values[count:]
        )


class TensorHistory:
    """The latest statistics, up to a maximum number of rows."""

    def __init__(self, max_rows: int):
        self._max_rows = max_rows
        self._entries: deque[Entries] = deque()
        self._rows = 0
        self._has_warned = False

    def __len__(self) -> int:
        return self._rows

    def add(self, entries: Entries) -> None:
        """Adds entries, and drops the oldest ones beyond the maximum number of rows."""
        self._entries.append(entries)
        self._rows += entries.rows
        while self._rows > self._max_rows:
            self._drop(self._entries[0], self._rows - self._max_rows)

    def _drop(self, oldest: Entries, rows: int) -> None:
        count = min(-(-rows // len(oldest.tensors)), len(oldest.numbers))
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"TensorStatistics has reached max_rows={self._max_rows} rows, and drops the "
                "oldest ones from now on. Set every= or max_rows= to a larger number, or choose "
                "fewer tensors.",
                stacklevel=2,
            )
        self._entries.popleft()
        self._rows -= count * len(oldest.tensors)
        if count < len(oldest.numbers):
            self._entries.appendleft(oldest.without_first(count))

    def columns(self) -> dict[str, np.ndarray]:
        """Returns the rows as columns: epoch, step, update, tensor and statistics.

        Rows are in the order of the computation: tensor by tensor, micro-batch by micro-batch,
        and those of an update after those of its last micro-batch.
        """
        parts = [_columns_of(each) for each in (_NOTHING, *self._entries)]
        columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        # Within a block the entries of micro-batches precede those of updates.
        order = np.argsort(2 * columns["step"] + columns.pop("of_updates"), kind="stable")
        return {name: column[order] for name, column in columns.items()}


_NO_VALUES = np.zeros((0, 0, len(STATISTICS)), np.float32)
_NOTHING = Entries(Epoch(0, 1), False, np.zeros(0, np.int64), (), _NO_VALUES)


def _columns_of(entries: Entries) -> dict[str, np.ndarray]:
    number = len(entries.tensors)

    def of_entries(values: np.ndarray) -> np.ndarray:
        return np.repeat(values, number)

    def of_tensors(values: list[str] | list[int], dtype: DTypeLike) -> np.ndarray:
        return np.tile(np.array(values, dtype), len(entries.numbers))

    columns = {
        "of_updates": np.full(entries.rows, entries.of_updates),
        "epoch": np.full(entries.rows, entries.epoch.number),
        "step": of_entries(entries.steps),
        "update": of_entries(entries.updates),
        "kind": of_tensors([tensor.kind for tensor in entries.tensors], object),
        "name": of_tensors([tensor.name for tensor in entries.tensors], object),
        "stage": of_tensors([tensor.stage for tensor in entries.tensors], np.int64),
    }
    flat = entries.values.reshape(-1, len(STATISTICS))
    for index, name in enumerate(STATISTICS):
        columns[name] = flat[:, index].astype(np.int64) if name in COUNTS else flat[:, index]
    return columns
