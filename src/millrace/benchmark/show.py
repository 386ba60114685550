"""The clock of a benchmark, and its output: a line for each epoch, tables, progress bars."""

import contextlib
import logging
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from millrace.errors import DataError
from millrace.records.feed_benchmark import Supply, SupplyEpoch

Arrivals = Iterator[tuple[int, int]]  # numbers of elements and of bytes
SHORTEST = 1e-9  # seconds: the resolution of the clock, so that rates stay finite


def measure(
    take: Callable[[int], Arrivals],
    epochs: int,
    elements: int,
    begin: float,
    tell: Callable[[int, SupplyEpoch], object] = lambda number, epoch: None,
    tick: Callable[[int], object] = lambda count: None,
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
        tick: called with the number of elements in each arrival.

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

Tick = Callable[[int], object]  # called with the number of elements or steps since the last call

TICK_SECONDS = 0.1  # between updates of the bar, which must not slow the benchmark down


def say(line: str) -> None:
    """Prints a line of results."""
    Console(highlight=False, soft_wrap=True).print(line, markup=False)


def tell_epoch(epochs: int, prints: bool, number: int, epoch: SupplyEpoch) -> None:
    """Logs the measurements of an epoch, and prints them if `prints` is true."""
    line = f"epoch {number}/{epochs}: {epoch}"
    logger.info(line)
    if prints:
        say(line)


def supply_table(supplies: dict[str, Supply]) -> Table:
    """Returns a table with a row for each epoch of each supply."""
    table = Table("", "epoch", "elements/s", "GB/s", "seconds", box=None)
    for column in table.columns[1:]:
        column.justify = "right"
    for name, supply in supplies.items():
        for number, epoch in enumerate(supply.epochs, 1):
            table.add_row(
                name if number == 1 else "",
                str(number),
                f"{epoch.elements_per_second:,.1f}",
                f"{epoch.bandwidth:.3f}",
                f"{epoch.time_elapsed:.3f}",
            )
    return table


@contextlib.contextmanager
def progress(*titles: str, each: int) -> Iterator[list[Tick]]:
    """Shows a progress bar for each title, if standard error is a terminal.

    Args:
        *titles: names of the tasks, in order.
        each: elements or steps of each task.

    Yields:
        For each title the function that advances its bar.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        yield [lambda count: None for _ in titles]
        return
    # Leaves standard output alone: it may go into a pipe.
    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True, redirect_stdout=False) as bar:
        yield [_tick(bar, bar.add_task(title, start=False, total=each)) for title in titles]


def _tick(bar: Progress, task: TaskID) -> Tick:
    done, shown = 0, 0.0

    def tick(count: int) -> None:
        nonlocal done, shown
        if not done:
            bar.start_task(task)
        done += count
        if (now := time.perf_counter()) - shown > TICK_SECONDS:
            shown = now
            bar.update(task, completed=done)

    return tick
