"""Statistics of tensors over the whole training: columns, and a table after each epoch.

StatisticsBlock  ->  Entries, Entries, ...   one for each block and kind; the oldest are dropped
                 ->  columns()               a row for each tensor of each entry, in order

Tables are plain ASCII, with colors on a terminal.
"""

import warnings
from collections import deque
from dataclasses import dataclass

import numpy as np
from jax.typing import DTypeLike
from rich.console import Console
from rich.table import Table

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
        columns_of_entries = [_columns_of(entries) for entries in self._entries]
        columns = {
            name: np.concatenate([empty, *(some[name] for some in columns_of_entries)])
            for name, empty in _EMPTY.items()
        }
        # Within a block the entries of micro-batches precede those of updates.
        is_update = np.concatenate(
            [np.zeros(0, bool), *(np.full(e.rows, e.of_updates) for e in self._entries)]
        )
        order = np.argsort(2 * columns["step"] + is_update, kind="stable")
        return {name: column[order] for name, column in columns.items()}


_EMPTY: dict[str, np.ndarray] = {
    **{name: np.zeros(0, np.int64) for name in ("epoch", "step", "update")},
    **{name: np.zeros(0, object) for name in ("kind", "name")},
    "stage": np.zeros(0, np.int64),
    **{name: np.zeros(0, np.int64 if name in COUNTS else np.float32) for name in STATISTICS},
}


def _columns_of(entries: Entries) -> dict[str, np.ndarray]:
    number = len(entries.tensors)

    def of_entries(values: np.ndarray) -> np.ndarray:
        return np.repeat(values, number)

    def of_tensors(values: list[str] | list[int], dtype: DTypeLike) -> np.ndarray:
        return np.tile(np.array(values, dtype), len(entries.numbers))

    columns = {
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


_PIPE_WIDTH = 160  # characters of a line that does not go to a terminal
_COUNTS = 2  # the last two statistics, which are summed over the epoch


class EpochTable:
    """A table of an epoch: the last statistics of each tensor, and all its NaNs and infinities."""

    def __init__(self) -> None:
        self._newest: dict[tuple[Tensor, ...], Entries] = {}
        self._sums: dict[tuple[Tensor, ...], np.ndarray] = {}

    def add(self, entries: Entries) -> None:
        """Adds entries of the epoch."""
        tensors = entries.tensors
        counts = entries.values[:, :, -_COUNTS:].sum(0, dtype=np.float64)
        self._sums[tensors] = self._sums.get(tensors, 0) + counts
        self._newest[tensors] = entries

    def print(self, console: Console, epoch: int) -> None:
        """Prints the table, unless it is empty."""
        if not self._newest:
            return
        step = max(entries.steps[-1] for entries in self._newest.values())
        update = max(entries.updates[-1] for entries in self._newest.values())
        console.print(
            f"epoch {epoch + 1}: tensors of step {step} and update {update}, nans and infs of the "
            "whole epoch",
            markup=False,
        )
        console.print(self._table())

    def _table(self) -> Table:
        table = Table("", "tensor", *STATISTICS, box=None, pad_edge=False)
        for column in table.columns[2:]:
            column.justify, column.no_wrap = "right", True
        table.columns[1].overflow = "fold"
        rows = [
            (tensor, entries.values[-1, index, :-_COUNTS], self._sums[tensors][index])
            for tensors, entries in self._newest.items()
            for index, tensor in enumerate(tensors)
        ]
        before = ""
        for tensor, last, sums in sorted(rows, key=lambda row: row[0].kind):
            numbers = [f"{value:.3g}" for value in last]
            counts = [f"{count:.0f}" for count in sums]
            kind = "" if tensor.kind == before else tensor.kind
            table.add_row(kind, tensor.name, *numbers, *counts, style="red" if sums.any() else None)
            before = tensor.kind
        return table


def make_console() -> Console:
    """Returns a console on standard output, with wide lines where it is not a terminal."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_PIPE_WIDTH)
