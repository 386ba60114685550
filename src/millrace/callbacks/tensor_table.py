"""The table that an epoch ends with: a row for each tensor.

Plain ASCII, with colours on top that a terminal shows and a pipe drops.
"""

from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from millrace.callbacks.tensor_history import Entries
from millrace.records.tensors import STATISTICS, Tensor

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
