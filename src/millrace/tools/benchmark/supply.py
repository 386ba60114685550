"""The supply of batches, measured epoch by epoch: the clock of a benchmark, and its output.

epoch 1/5: 1,204.1 elements/s, 1.480 GB/s         a line for each epoch, and JSON of all
"""

import json
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

from rich.console import Console

from millrace.base.options import truth, whole_number
from millrace.errors import DataError

Arrivals = Iterator[tuple[int, int]]  # numbers of elements and of bytes
SHORTEST = 1e-9  # seconds: the resolution of the clock, so that rates stay finite

logger = logging.getLogger("millrace")


@dataclass(frozen=True, slots=True)
class BenchmarkOptions:
    """The options of a benchmark, checked."""

    epochs: int
    elements: int  # of an epoch
    prints: bool
    copies: bool


def checked(
    epochs: object, elements: object, print_stats: object, do_memcpy: object
) -> BenchmarkOptions:
    """Returns the options.

    Raises:
        OptionError: if a number is below 1.
    """
    epochs, prints = whole_number("number_of_epochs", epochs, 1), truth("print_stats", print_stats)
    elements = whole_number("elements_per_epochs", elements, 1)
    return BenchmarkOptions(epochs, elements, prints, truth("do_memcpy", do_memcpy))


@dataclass(frozen=True, slots=True)
class SupplyEpoch:
    """The elements of one epoch of a benchmark. An element is one batch."""

    elements_processed: float
    total_bytes_processed: float
    time_elapsed: float  # seconds

    @property
    def elements_per_second(self) -> float:
        """Elements over seconds."""
        return self.elements_processed / self.time_elapsed

    @property
    def bandwidth(self) -> float:
        """1e9 bytes per second."""
        return self.total_bytes_processed / (1e9 * self.time_elapsed)

    def as_json(self) -> dict[str, float]:
        """Returns the five numbers by name."""
        rates = {"elements_per_second": self.elements_per_second, "bandwidth": self.bandwidth}
        return {**asdict(self), **rates}

    def __str__(self) -> str:
        return f"{self.elements_per_second:,.1f} elements/s, {self.bandwidth:.3f} GB/s"


def measure(take: Callable[[int], Arrivals], options: BenchmarkOptions, begin: float) -> str:
    """Draws all epochs without a pause between them, and returns the measurements as JSON.

    The clock runs on while a line is printed: the data set keeps working meanwhile, so an epoch
    that began with a full queue would look faster than the data set is.

    Args:
        take: yields arrivals, up to the number of elements that it is called with.
        options: of the benchmark.
        begin: time at which the data set was opened, by `time.perf_counter`.

    Raises:
        DataError: if the data ends before the last epoch does.
    """
    epochs, elements = options.epochs, options.elements
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
            raise _ended(done + (number - 1) * elements, epochs, elements)
        now = time.perf_counter()
        measured.append(SupplyEpoch(float(done), float(nbytes), max(now - last, SHORTEST)))
        last = now
        line = f"epoch {number}/{epochs}: {measured[-1]}"
        logger.info(line)
        if options.prints:
            Console(highlight=False, soft_wrap=True).print(line, markup=False)
    return json.dumps(
        {
            "epochs": [epoch.as_json() for epoch in measured],
            "first_element_seconds": first or SHORTEST,  # part of the first epoch
        }
    )


def _ended(delivered: int, epochs: int, elements: int) -> DataError:
    """Returns the error for a data set with too few elements."""
    fewer = delivered // epochs
    advice = f"Ask for {epochs} epochs of {fewer} elements or fewer, or make" if fewer else "Make"
    return DataError(
        f"The data set ended after {delivered} elements, but {epochs} epochs of {elements} "
        f"elements need {epochs * elements}. A benchmark reads the data set once and does not "
        f"reopen it, since opening would be timed as well. {advice} the data endless: with "
        "repeat() in tf.data and grain, or with a generator that starts over."
    )
