"""Reports of `dataset_benchmark` and `infeed_benchmark`, compared with loops timed by hand.

Claim: for batches that take a millisecond or more, both report the elements per second of a loop
over the same data in one thread, within 3 %. Peers, in the same run:

    dataset_benchmark   for batch in data: copy it
    infeed_benchmark    for batch in data: copy it into a block; put each full block on the device

Preparation waits (as for a disk), or computes (NumPy, without the interpreter's lock). The last
rows are the cost of passing batches on without preparation: batches that are slices of an array.
"""

import itertools
import json
import statistics
import time
from collections.abc import Callable, Iterator

import millrace  # isort: skip  # noqa: F401 - makes JAX the backend of Keras
import jax
import numpy as np

import harness
from millrace.tools.benchmark.throughput import dataset_benchmark, infeed_benchmark

ROWS, COLUMNS = 64, 256
PREPARATION = 2e-3  # seconds for a batch
EPOCHS = 5
CLAIM = 0.03

Batch = tuple[np.ndarray, np.ndarray]
Source = Callable[[], Iterator[Batch]]


def waiting() -> Iterator[Batch]:
    """Batches, each after a wait."""
    for batch in slices():
        time.sleep(PREPARATION)
        yield batch


def working() -> Iterator[Batch]:
    """Batches, each after a fixed NumPy computation."""
    for batch in slices():
        for _ in range(TURNS):
            np.sort(NUMBERS)
        yield batch


def slices() -> Iterator[Batch]:
    """Batches without preparation."""
    begins = range(0, len(X), ROWS)
    for begin in itertools.cycle(begins):
        yield X[begin : begin + ROWS], Y[begin : begin + ROWS]


def by_hand(source: Source, elements: int) -> float:
    """Returns the seconds of reading and copying, epoch after epoch."""
    target = np.empty((ROWS, COLUMNS), np.float32), np.empty((ROWS, 1), np.float32)
    begin = time.perf_counter()
    for x, y in itertools.islice(source(), EPOCHS * elements):
        np.copyto(target[0], x)
        np.copyto(target[1], y)
    return time.perf_counter() - begin


def blocks_by_hand(source: Source, elements: int) -> float:
    """Returns the seconds of reading, stacking a block per epoch, and placing it."""
    device = jax.local_devices()[0]
    begin = time.perf_counter()
    batches = source()
    for _ in range(EPOCHS):
        xs = np.empty((elements, ROWS, COLUMNS), np.float32)
        ys = np.empty((elements, ROWS, 1), np.float32)
        for index, (x, y) in enumerate(itertools.islice(batches, elements)):
            xs[index], ys[index] = x, y
        jax.block_until_ready(jax.device_put((xs, ys), device))
    return time.perf_counter() - begin


def reported(benchmark: Callable[..., str]) -> Callable[[Source, int], float]:
    """Returns a function that returns the seconds that a benchmark of ours reports."""

    def run(source: Source, elements: int) -> float:
        report = json.loads(benchmark(source, EPOCHS, elements, print_stats=False))
        return sum(epoch["time_elapsed"] for epoch in report["epochs"])

    return run


PAIRS = {
    "dataset_benchmark": (reported(dataset_benchmark), by_hand),
    "infeed_benchmark": (reported(infeed_benchmark), blocks_by_hand),
}


def compare(source: Source, elements: int, rounds: int) -> Iterator[tuple[str, list, list]]:
    """Prints the rows of one data set, and yields the seconds of each pair by name."""
    steps = EPOCHS * elements
    print(f"{source.__name__}: {EPOCHS} epochs of {elements} batches, {X[:ROWS].nbytes} bytes each")
    for name, pair in PAIRS.items():
        times: tuple[list[float], list[float]] = [], []
        for turn in range(-1, rounds):  # the first is a warm-up
            for which in (0, 1) if turn % 2 else (1, 0):
                seconds = pair[which](source, elements)
                if turn >= 0:
                    times[which].append(seconds)
        harness.row(name, times[0], steps)
        harness.row("  by hand", times[1], steps)
        yield name, *times


def main() -> None:
    """Runs all data sets and prints the ratios last."""
    options = harness.arguments(__doc__, rounds=11)
    elements = 20 if options.small else 100
    harness.header("Feed benchmarks: reported time per batch against loops timed by hand")
    lines = []
    for source in (waiting, working):
        if options.only in source.__name__:
            for name, ours, hand in compare(source, elements, options.rounds):
                # Elements per second are over the same number of elements.
                title = f"{source.__name__}: {name} / by hand, elements per second"
                _, line = harness.ratio(title, hand, ours)
                lines.append(f"{line}   claim {1 - CLAIM}-{1 + CLAIM}")
    if options.only in "slices":
        for name, ours, hand in compare(slices, 20 * elements, options.rounds):
            more = statistics.median(a - b for a, b in zip(ours, hand, strict=True))
            per_batch = more / (EPOCHS * 20 * elements) * 1e6
            lines.append(f"slices: {name} - by hand = {per_batch:.1f} us/batch")
    print()
    print("\n".join(lines))


_random = np.random.default_rng(0)
X = _random.standard_normal((100 * ROWS, COLUMNS), dtype=np.float32)
Y = _random.standard_normal((100 * ROWS, 1), dtype=np.float32)
NUMBERS = _random.standard_normal(4096)
TURNS = max(
    1, round(PREPARATION / min(harness.seconds(lambda: np.sort(NUMBERS)) for _ in range(200)))
)

if __name__ == "__main__":
    main()
