"""Epochs of a benchmark, timed."""

import time
from collections.abc import Callable, Iterator

from millrace.errors import DataError
from millrace.records.feed_benchmark import Supply, SupplyEpoch

Arrivals = Iterator[tuple[int, int]]  # elements and bytes of what has arrived
SHORTEST = 1e-9  # seconds: what the clock resolves, so that rates are finite


def measure(
    take: Callable[[int], Arrivals],
    epochs: int,
    elements: int,
    begin: float,
    tell: Callable[[int, SupplyEpoch], object] = lambda number, epoch: None,
    tick: Callable[[int], object] = lambda count: None,
) -> Supply:
    """Draws all epochs, one right after the other.

    The clock is not stopped for `tell`: the data set works on meanwhile, and an epoch that began
    with a full queue would look faster than the data set is.

    Args:
        take: yields what arrives, up to as many elements as it is asked for.
        epochs: how many.
        elements: of each epoch.
        begin: when the data set was opened, by `time.perf_counter`.
        tell: is told of every epoch, numbered from 1.
        tick: is told how many elements have arrived.

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
            tick(count)
        if done < elements:
            raise ended(done + (number - 1) * elements, epochs, elements)
        now = time.perf_counter()
        measured.append(SupplyEpoch(float(done), float(nbytes), max(now - last, SHORTEST)))
        last = now
        tell(number, measured[-1])
    return Supply(tuple(measured), first or SHORTEST)


def ended(delivered: int, epochs: int, elements: int) -> DataError:
    """Returns the error of a data set that holds too little."""
    fewer = delivered // epochs
    advice = f"Ask for {epochs} epochs of {fewer} elements or fewer, or let" if fewer else "Let"
    return DataError(
        f"The data set ended after {delivered} elements, and {epochs} epochs of {elements} "
        f"elements take {epochs * elements}. A benchmark reads on and does not start it again, "
        f"since opening it would be timed as well. {advice} the data go on: repeat() of tf.data "
        "and grain, or a generator that reads it again and again."
    )
