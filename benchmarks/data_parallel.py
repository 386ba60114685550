"""Data parallelism over two processes: throughput compared with one process, each on one core.

Claim: two processes train at least 1.8x as many rows per second as one, with the same batch size
per replica. The peer is the same model in one pinned process.

    core 0   replica 0   batch 0, 2, 4, ...  ┐ gradients are summed once per update
    core 1   replica 1   batch 1, 3, 5, ...  ┘

Two sizes of each model: that of `models.py`, which trains a batch in a fraction of a millisecond
and so shows the cost of the sum; and a larger one with accumulation, which the claim is about.
"""

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import millrace  # isort: skip
import keras
import numpy as np

import harness
import workers

BAR = 1.8
RATE = 0.01


@dataclass(frozen=True)
class Case:
    """One model at one size."""

    name: str
    shape: tuple[int, ...]  # of a row
    batch: int  # rows of each replica's micro-batch
    micro_batches: int  # micro-batches of each replica in an update
    updates: int
    build: Callable[[], list[Any]]  # its layers
    claims: bool

    def small(self) -> "Case":
        """Returns the case for `--small`."""
        return Case(self.name, self.shape, 4, min(self.micro_batches, 2), 2, self.build, False)


def _mlp(width: int) -> list[Any]:
    hidden = [keras.layers.Dense(width, "relu") for _ in range(2)]
    return [*hidden, keras.layers.Dense(10)]


def _convnet(filters: int) -> list[Any]:
    layers = keras.layers
    return [
        layers.Conv2D(filters, 3, activation="relu"),
        layers.MaxPooling2D(),
        layers.Conv2D(2 * filters, 3, activation="relu"),
        layers.GlobalAveragePooling2D(),
        layers.Dense(10),
    ]


CASES = (
    Case("mlp", (64,), 32, 1, 200, lambda: _mlp(128), False),
    Case("convnet", (16, 16, 1), 32, 1, 100, lambda: _convnet(8), False),
    Case("mlp 1024", (256,), 256, 4, 10, lambda: _mlp(1024), False),
    Case("mlp 1024, 16 batches", (256,), 256, 16, 4, lambda: _mlp(1024), True),
    Case("convnet 32", (32, 32, 3), 32, 4, 5, lambda: _convnet(32), True),
)


def worker(role: str, name: str, small: bool, address: str, index: int) -> None:
    """Trains as one of two processes, or as the only one."""
    case = next(case for case in CASES if case.name == name)
    case = case.small() if small else case
    replicas = 1
    if role == "both":
        millrace.distributed.initialize(address, 2, index)
        replicas = 2
    keras.utils.set_random_seed(0)
    rows = replicas * case.batch * case.micro_batches * case.updates
    random = np.random.default_rng(0)
    x = random.standard_normal((rows, *case.shape), dtype=np.float32)
    y = random.integers(0, 10, rows, dtype=np.int32)
    strategy = millrace.Strategy()
    with strategy.scope():
        model = keras.Sequential([keras.Input(case.shape), *case.build()])
        model.compile(
            keras.optimizers.SGD(RATE),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            steps_per_execution=rows // case.batch,
        )
        model.set_gradient_accumulation_options(
            gradient_accumulation_steps_per_replica=case.micro_batches
        )
    fit = functools.partial(model.fit, x, y, batch_size=case.batch, shuffle=False, verbose=0)
    fit()  # compiles
    workers.serve({"fit": fit})


def measure(case: Case, rounds: int, small: bool) -> str:
    """Prints the times of one case, and returns its ratio as a line."""
    arguments = (case.name, str(int(small)))
    times = workers.two_and_one(__file__, arguments, "fit", rounds)
    case = case.small() if small else case
    work = f"{case.updates} updates of {case.micro_batches} x {case.batch} rows per replica"
    print(f"{case.name}: {work}; a step is an update")
    for name, values in times.items():
        harness.row(name, values, case.updates)
    # Twice the rows in `two processes`.
    twice = [2 * seconds for seconds in times["one process"]]
    _, line = harness.ratio(
        f"{case.name}: rows per second, two / one", twice, times["two processes"]
    )
    return line + (f"   claim >= {BAR}x" if case.claims else "")


def main() -> None:
    """Runs all cases and prints the ratios last."""
    options = harness.arguments(__doc__)
    harness.header("Data parallel over two processes, one core each")
    lines = [
        measure(case, options.rounds, options.small) for case in CASES if options.only in case.name
    ]
    print()
    print("\n".join(lines))


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        role, name, small, address, index = sys.argv[2:]
        worker(role, name, bool(int(small)), address, int(index))
    else:
        main()
