"""The table of `millrace replay`: every tensor of the update, in the order of its computation."""

import importlib
import os
import pathlib
import sys
from collections.abc import Iterable

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from millrace.compiling.progress import search
from millrace.errors import OptionError
from millrace.records.printable import printable
from millrace.records.tensors import STATISTICS
from millrace.replay.run import Replayed, is_non_finite, replay

_PIPE_WIDTH = 160  # characters of a line that does not go to a terminal


def show(directory: pathlib.Path, modules: Iterable[str], everything: bool) -> bool:
    """Runs an update again and prints it; returns whether it went wrong in the same way.

    Args:
        directory: the one that NaNWatch wrote.
        modules: imported first, for the layers, losses and metrics that they register.
        everything: prints all micro-batches, not only the one that goes wrong.

    Raises:
        OptionError: if a module cannot be imported.
        DataError: if there is no flight record, or its model does not load.
    """
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    for module in modules:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise OptionError(
                f"--import {module} does not import: {error}. Run the command in the directory of "
                "the module, or install it."
            ) from error
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_PIPE_WIDTH)
    with search("running the update again"):
        replayed = replay(directory)
    console.print(f"recorded  {printable(str(replayed.record))}", markup=False, soft_wrap=True)
    for line in replayed.record.of_data():
        console.print(printable(line), style="bold red", markup=False, soft_wrap=True)
    console.print(_table(replayed, everything))
    if replayed.repeats:
        console.print("The same tensor is the first that is not finite, with equal counts.")
    else:
        console.print(
            "It did not go wrong in the same way: "
            + printable(_difference(replayed))
            + " Causes can be another device, another version of JAX, or a layer that uses the "
            "clock or NumPy's random numbers.",
            style="bold red",
            markup=False,
        )
    console.print(
        f"finite statistics of the gradients: within {replayed.largest_difference:.1e} of those "
        "recorded"
    )
    return replayed.repeats


def _difference(replayed: Replayed) -> str:
    first = replayed.replay.first_non_finite()
    if first is None:
        return "every tensor is finite now."
    micro_batch, tensor, _ = first
    where = "the update" if micro_batch is None else f"micro-batch {micro_batch}"
    return f"now the first is {tensor} of {where}."


def _table(replayed: Replayed, everything: bool) -> Table:
    table = Table("", "", "tensor", *STATISTICS, box=None, pad_edge=False)
    for column in table.columns[3:]:
        column.justify, column.no_wrap = "right", True
    first = replayed.replay.first_non_finite()
    for micro_batch, tensor, row in replayed.replay.in_order():
        is_shown = everything or first is None or micro_batch in (first[0], None)
        if not is_shown:
            continue
        is_first = first is not None and (micro_batch, tensor) == first[:2]
        table.add_row(
            "first ->" if is_first else "",
            "update" if micro_batch is None else f"micro-batch {micro_batch}",
            Text(printable(str(tensor))),
            *_numbers(row),
            style="bold red" if is_first else "red" if is_non_finite(row) else None,
        )
    return table


def _numbers(row: np.ndarray) -> list[str]:
    return [f"{value:.4g}" for value in row[:-2]] + [f"{count:.0f}" for count in row[-2:]]
