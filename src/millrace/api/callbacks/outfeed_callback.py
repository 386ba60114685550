"""Statistics of the values in an outfeed queue, printed after each epoch.

Gradients
key: Dense_128/bias:0_grad shape: (125, 128)
Epoch 3 - Summary Stats
Index Name                       Mean         Std          ...
0     Dense_128/bias:0_grad      -0.000663    0.021037     ...
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import keras
import numpy as np

from millrace.base.pytrees import ArrayTree
from millrace.errors import OptionError
from millrace.programs.taps.outfeed_queue import OutfeedQueue

PART = 2**16  # values whose statistics are computed at a time


@dataclass(frozen=True, slots=True)
class OutfeedSummary:
    """Statistics of the values that one epoch enqueued under one key. NaNs spread into them."""

    epoch: int  # from 0, as Keras counts them
    key: str
    shape: tuple[int, ...]  # [elements, ...]
    mean: float
    std: float  # standard deviation of the population
    minimum: float
    maximum: float
    has_nans: bool
    has_infs: bool


class OutfeedCallback(keras.callbacks.Callback):
    """Empties a queue at the end of each epoch of `fit`, and prints statistics of its values.

    Args:
        outfeed_queue: an `OutfeedQueue` or a `MaybeOutfeedQueue`.
        name: title of the printed table.

    Attributes:
        history: an `OutfeedSummary` for each epoch and key, in the order of the table.

    Raises:
        OptionError: if `outfeed_queue` is not a queue.
    """

    def __init__(self, outfeed_queue: OutfeedQueue, name: str = "OutfeedCallback"):
        super().__init__()
        if not isinstance(outfeed_queue, OutfeedQueue):
            raise OptionError(
                "outfeed_queue must be a millrace.OutfeedQueue or a millrace.MaybeOutfeedQueue. "
                f"Received: {outfeed_queue!r}. Create the queue first, and pass it to a layer or "
                "an optimizer that enqueues, too."
            )
        self.name = name
        self.history: list[OutfeedSummary] = []
        self._queue = outfeed_queue

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float] | None = None) -> None:
        """Prints statistics of the values that the epoch enqueued."""
        print(f"\n{self.name}")
        if not self._queue.enqueued:
            print("No data enqueued")
            return
        rows = [_summary(epoch, *item) for item in _arrays(self._queue.dequeue())]
        self.history.extend(rows)
        for row in rows:
            print(f"key: {row.key} shape: {row.shape}")
        print(f"Epoch {epoch + 1} - Summary Stats")
        _print_table(rows)


def _arrays(data: ArrayTree, name: str = "") -> Iterator[tuple[str, np.ndarray]]:
    """Yields arrays by key; those of a nested structure under one key as `key/0`, `key/1`."""
    if isinstance(data, dict | list | tuple):
        items = data.items() if isinstance(data, dict) else enumerate(data)
        for key, value in items:
            yield from _arrays(value, f"{name}/{key}" if name else str(key))
    else:
        yield name or "value", np.asarray(data)


def _summary(epoch: int, key: str, value: np.ndarray) -> OutfeedSummary:
    if value.dtype.kind not in "fiub":  # bfloat16 and similar, which NumPy does not sum
        value = value.astype(np.float32)
    if not value.size:
        nan = float("nan")
        return OutfeedSummary(epoch, key, value.shape, nan, nan, nan, nan, False, False)
    # float64 keeps the mean of many float32 as exact as they are. With infinities std is NaN.
    with np.errstate(invalid="ignore", over="ignore"):
        mean = float(value.mean(dtype=np.float64))
        squares, has_nans, has_infs = 0.0, False, False
        for part in _parts(value):
            # np.std would take twice the memory of all float32 values for their differences.
            difference = part - np.float64(mean)
            squares += float(np.square(difference, out=difference).sum())
            has_nans = has_nans or bool(np.isnan(part).any())
            has_infs = has_infs or bool(np.isinf(part).any())
        return OutfeedSummary(
            epoch=epoch,
            key=key,
            shape=value.shape,
            mean=mean,
            std=math.sqrt(squares / value.size),
            minimum=float(value.min()),
            maximum=float(value.max()),
            has_nans=has_nans,
            has_infs=has_infs,
        )


def _parts(value: np.ndarray) -> Iterator[np.ndarray]:
    flat = value.reshape(-1)
    for begin in range(0, flat.size, PART):
        yield flat[begin : begin + PART].astype(np.float64)


def _print_table(rows: list[OutfeedSummary]) -> None:
    longest = max((len(row.key) for row in rows), default=0)
    widths = (5, longest + 5, 12, 12, 12, 12, 7, 7)
    _print_row(widths, "Index", "Name", "Mean", "Std", "Minimum", "Maximum", "NaNs", "infs")
    for index, row in enumerate(rows):
        numbers = [f"{n:.6f}" for n in (row.mean, row.std, row.minimum, row.maximum)]
        _print_row(widths, str(index), row.key, *numbers, str(row.has_nans), str(row.has_infs))


def _print_row(widths: tuple[int, ...], *cells: str) -> None:
    print(" ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)))
