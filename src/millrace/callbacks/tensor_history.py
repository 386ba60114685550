"""Statistics of tensors over the whole training: columns, and a table after each epoch.

StatisticsBlock  ->  Entries, Entries, ...   one for each block and kind, oldest dropped
                 ->  columns()               a row for each tensor of each entry, in order

Plain ASCII, with colours on top that a terminal shows and a pipe drops.
"""

import warnings
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from millrace.records.tensors import STATISTICS, Tensor

COUNTS = ("nans", "infs")


@dataclass(slots=True, eq=False)
class Epoch:
    """Where an epoch lies among all the steps and updates that were looked at."""

    number: int  # as Keras counts
    update_steps: int  # steps of an update; the last one of an epoch may have fewer
    first_step: int = 0
    first_update: int = 0
    iterations: int | None = None  # of the optimizer, when it began; None: does not matter
    steps: int = 0  # so far; 0: nobody has counted them yet
    updates: int = 0  # so far


@dataclass(frozen=True, slots=True, eq=False)
class Entries:
    """Statistics of consecutive micro-batches or updates of an epoch."""

    epoch: Epoch
    of_updates: bool
    numbers: np.ndarray  # [entries], of micro-batches or updates within the epoch
    tensors: tuple[Tensor, ...]
    values: np.ndarray  # [entries, tensors, statistics]
    histograms: np.ndarray | None = None  # [entries, tensors, bins], of those just arrived

    @property
    def rows(self) -> int:
        """One for each tensor of each entry."""
        return len(self.numbers) * len(self.tensors)

    @property
    def updates(self) -> np.ndarray:
        """The update that each entry is, or that its micro-batch belongs to; over all epochs."""
        within = self.numbers if self.of_updates else self.numbers // self.epoch.update_steps
        return self.epoch.first_update + within

    @property
    def steps(self) -> np.ndarray:
        """The micro-batch of each entry, of an update its last one; over all epochs."""
        within = self.numbers
        if self.of_updates:
            within = (self.numbers + 1) * self.epoch.update_steps - 1
            if self.epoch.steps:
                within = np.minimum(within, self.epoch.steps - 1)
        return self.epoch.first_step + within

    def without_first(self, count: int) -> "Entries":
        """Returns these without the oldest `count` entries."""
        return Entries(
            self.epoch, self.of_updates, self.numbers[count:], self.tensors, self.values[count:]
        )


class TensorHistory:
    """What was seen last, up to a number of rows."""

    def __init__(self, max_rows: int):
        self._max_rows = max_rows
        self._entries: deque[Entries] = deque()
        self._rows = 0
        self._has_warned = False

    def __len__(self) -> int:
        return self._rows

    def add(self, entries: Entries) -> None:
        """Keeps more entries, and drops the oldest for them where there is no more room."""
        self._entries.append(entries)
        self._rows += entries.rows
        while self._rows > self._max_rows:
            self._drop(self._entries[0], self._rows - self._max_rows)

    def _drop(self, oldest: Entries, too_many: int) -> None:
        count = min(-(-too_many // len(oldest.tensors)), len(oldest.numbers))
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"TensorStatistics keeps max_rows={self._max_rows} rows, and drops the oldest ones "
                "from now on. Set every= or max_rows= to a larger number, or look at fewer "
                "tensors.",
                stacklevel=2,
            )
        self._entries.popleft()
        self._rows -= count * len(oldest.tensors)
        if count < len(oldest.numbers):
            self._entries.appendleft(oldest.without_first(count))

    def columns(self) -> dict[str, np.ndarray]:
        """Returns a column for each property of a row: those of where it is from, and statistics.

        Rows are in the order in which they were computed: tensor by tensor, micro-batch by
        micro-batch, and those of an update after those of its last micro-batch.
        """
        parts = [_columns_of(entries) for entries in self._entries]
        columns = {
            name: np.concatenate([empty, *(part[name] for part in parts)])
            for name, empty in _EMPTY.items()
        }
        # Within a block the entries of micro-batches are in front of those of updates.
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

    def of_entries(values: Any) -> np.ndarray:
        return np.repeat(values, number)

    def of_tensors(values: list[Any], dtype: Any) -> np.ndarray:
        return np.tile(np.array(values, dtype), len(entries.numbers))

    places = {
        "epoch": np.full(entries.rows, entries.epoch.number),
        "step": of_entries(entries.steps),
        "update": of_entries(entries.updates),
        "kind": of_tensors([tensor.kind for tensor in entries.tensors], object),
        "name": of_tensors([tensor.name for tensor in entries.tensors], object),
        "stage": of_tensors([tensor.stage for tensor in entries.tensors], np.int64),
    }
    flat = entries.values.reshape(-1, len(STATISTICS))
    for place, name in enumerate(STATISTICS):
        places[name] = flat[:, place].astype(np.int64) if name in COUNTS else flat[:, place]
    return places


_PIPE_WIDTH = 160  # of a line in a file: nobody has a window around it
_COUNTS = 2  # the last two of the statistics are sums over the epoch


class EpochTable:
    """Collects what an epoch shows of each tensor: its last numbers, all NaNs and infinities."""

    def __init__(self) -> None:
        self._newest: dict[tuple[Tensor, ...], Entries] = {}
        self._sums: dict[tuple[Tensor, ...], Any] = {}

    def add(self, entries: Entries) -> None:
        """Takes in more of the epoch."""
        tensors = entries.tensors
        counts = entries.values[:, :, -_COUNTS:].sum(0, dtype=np.float64)
        self._sums[tensors] = self._sums.get(tensors, 0) + counts
        self._newest[tensors] = entries

    def print(self, console: Console, epoch: int) -> None:
        """Prints the epoch, if anything was seen in it."""
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
            (tensor, entries.values[-1, place, :-_COUNTS], self._sums[tensors][place])
            for tensors, entries in self._newest.items()
            for place, tensor in enumerate(tensors)
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
    """Returns standard output; in a pipe, with lines that are long enough for the table."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_PIPE_WIDTH)
