"""The clock of a benchmark, and its output: a line for each epoch, and tables."""

import logging
import time
from collections.abc import Callable, Iterator

from rich.console import Console

from millrace.base.records.feed_benchmark import Supply, SupplyEpoch
from millrace.errors import DataError

Arrivals = Iterator[tuple[int, int]]  # numbers of elements and of bytes
SHORTEST = 1e-9  # seconds: the resolution of the clock, so that rates stay finite


def measure(
    take: Callable[[int], Arrivals],
    epochs: int,
    elements: int,
    begin: float,
    tell: Callable[[int, SupplyEpoch], object] = lambda number, epoch: None,
) -> Supply:
    """Draws all epochs without a pause between them.

    The clock runs on during `tell`: the data set keeps working meanwhile, so an epoch that began
    with a full queue would look faster than the data set is.

    Args:
        take: yields arrivals, up to the number of elements that it is called with.
        epochs: number of epochs.
        elements: elements in each epoch.
        begin: time at which the data set was opened, by `time.perf_counter`.
        tell: called after each epoch with its number, from 1, and its measurements.

    Raises:
        DataError: if the data ends before the last epoch does.
    """
    measured: list[SupplyEpoch] = []
    first: float | None = None
    last = begin
    for number in range(1, epochs + 1):
        done = nbytes = 0
        for count, size in take(elements):
            if first is None:
                first = time.perf_counter() - begin
            done += count
            nbytes += size
        if done < elements:
            raise ended(done + (number - 1) * elements, epochs, elements)
        now = time.perf_counter()
        measured.append(SupplyEpoch(float(done), float(nbytes), max(now - last, SHORTEST)))
        last = now
        tell(number, measured[-1])
    return Supply(tuple(measured), first or SHORTEST)


def ended(delivered: int, epochs: int, elements: int) -> DataError:
    """Returns the error for a data set with too few elements."""
    fewer = delivered // epochs
    advice = f"Ask for {epochs} epochs of {fewer} elements or fewer, or make" if fewer else "Make"
    return DataError(
        f"The data set ended after {delivered} elements, but {epochs} epochs of {elements} "
        f"elements need {epochs * elements}. A benchmark reads the data set once and does not "
        f"reopen it, since opening would be timed as well. {advice} the data endless: with "
        "repeat() in tf.data and grain, or with a generator that starts over."
    )


logger = logging.getLogger("millrace")


def say(line: str) -> None:
    """Prints a line of results."""
    Console(highlight=False, soft_wrap=True).print(line, markup=False)


def tell_epoch(epochs: int, prints: bool, number: int, epoch: SupplyEpoch) -> None:
    """Logs the measurements of an epoch, and prints them if `prints` is true."""
    line = f"epoch {number}/{epochs}: {epoch}"
    logger.info(line)
    if prints:
        say(line)
