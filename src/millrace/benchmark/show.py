"""What a benchmark shows: a line per epoch, timed, tables, and progress on a terminal."""

import contextlib
import logging
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

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


logger = logging.getLogger("millrace")

Tick = Callable[[int], object]  # is told how many elements or steps are done

TICK_SECONDS = 0.1  # between two looks of the bar: it should not be what is measured


def say(line: str) -> None:
    """Prints a line of results."""
    Console(highlight=False, soft_wrap=True).print(line, markup=False)


def tell_epoch(epochs: int, prints: bool, number: int, epoch: SupplyEpoch) -> None:
    """Logs how an epoch went, and prints it where the user wants that."""
    line = f"epoch {number}/{epochs}: {epoch}"
    logger.info(line)
    if prints:
        say(line)


def supply_table(supplies: dict[str, Supply]) -> Table:
    """Returns a row for each epoch of each of the measured supplies."""
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
    """Shows a bar for each title while someone looks at a terminal.

    Args:
        *titles: what is done, one after the other.
        each: elements or steps of each of them.

    Yields:
        For each title the function that moves its bar on.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        yield [lambda count: None for _ in titles]
        return
    # Results may go into a pipe while the bar does not: standard output is left alone.
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
