"""What `millrace replay` shows: every tensor of the update, in the order of its computation."""

import importlib
import os
import pathlib
import sys
from collections.abc import Iterable

import numpy as np
from rich.console import Console
from rich.table import Table

from millrace.errors import OptionError
from millrace.records.tensors import STATISTICS
from millrace.replay.run import Replayed, is_non_finite, replay

_PIPE_WIDTH = 160  # of a line in a file


def show(directory: pathlib.Path, modules: Iterable[str], everything: bool) -> bool:
    """Runs an update again and prints it; returns whether it went wrong as it did before.

    Args:
        directory: that NaNWatch has written.
        modules: to import first, for the layers, losses and metrics that they register.
        everything: prints all micro-batches, not only the one that goes wrong.

    Raises:
        OptionError: if a module cannot be imported.
        DataError: if there is no flight record, or its model cannot be loaded.
    """
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    for module in modules:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise OptionError(
                f"--import {module} does not import: {error}. Run the command where the module is, "
                "or install it."
            ) from error
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_PIPE_WIDTH)
    with console.status("running the update again ..."):
        replayed = replay(directory)
    console.print(f"recorded  {replayed.record}", markup=False, soft_wrap=True)
    for line in replayed.record.of_data():
        console.print(line, style="bold red", markup=False, soft_wrap=True)
    console.print(_table(replayed, everything))
    if replayed.repeats:
        console.print("The same tensor is the first that is not finite, with the same counts.")
    else:
        console.print(
            "It did not go wrong in the same way: "
            + _difference(replayed)
            + " Another device, another version of JAX, or a layer that draws from the clock or "
            "from NumPy can do this.",
            style="bold red",
            markup=False,
        )
    console.print(
        f"finite numbers of the gradients: within {replayed.largest_difference:.1e} of those "
        "recorded"
    )
    return replayed.repeats


def _difference(replayed: Replayed) -> str:
    found = replayed.replay.first_non_finite()
    if found is None:
        return "every tensor is finite now."
    micro_batch, tensor, _ = found
    where = "the update" if micro_batch is None else f"micro-batch {micro_batch}"
    return f"first is {tensor} of {where} now."


def _table(replayed: Replayed, everything: bool) -> Table:
    table = Table("", "", "tensor", *STATISTICS, box=None, pad_edge=False)
    for column in table.columns[3:]:
        column.justify, column.no_wrap = "right", True
    first = replayed.replay.first_non_finite()
    for micro_batch, tensor, row in replayed.replay.in_order():
        wanted = first is None or micro_batch in (first[0], None)
        if not wanted and not everything:
            continue
        is_first = first is not None and (micro_batch, tensor) == first[:2]
        table.add_row(
            "first ->" if is_first else "",
            "update" if micro_batch is None else f"micro-batch {micro_batch}",
            str(tensor),
            *_numbers(row),
            style="bold red" if is_first else "red" if is_non_finite(row) else None,
        )
    return table


def _numbers(row: np.ndarray) -> list[str]:
    return [f"{value:.4g}" for value in row[:-2]] + [f"{count:.0f}" for count in row[-2:]]
