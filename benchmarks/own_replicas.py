"""Replicas of a loop of one's own, on two processes: steps per second compared with one process.

Claim: where a step computes for 20 ms, two processes of one core each compute at least 1.7x as
many steps of a replica per second as one. The peer is the same function without replicas, in one
pinned process.

    core 0   replica 0   element 0, 2, 4, ...  ┐ the gradients are averaged in every step
    core 1   replica 1   element 1, 3, 5, ...  ┘

The loop reads an infeed queue and enqueues every loss. The short steps show the cost of an
exchange, which the claim is not about.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import millrace  # isort: skip
import keras
import numpy as np

import harness
import workers
from millrace_ipu.ipu.optimizers.ipu_optimizer import CrossReplicaOptimizer

BAR = 1.7
RATE = 0.01


@dataclass(frozen=True)
class Case:
    """One model at one size."""

    name: str
    shape: tuple[int, ...]  # of a row
    batch: int  # rows of each replica's element
    steps: int
    build: Callable[[], list[Any]]  # its layers
    claims: bool

    def small(self) -> "Case":
        """Returns the case for `--small`."""
        return Case(self.name, self.shape, 4, 6, self.build, False)


def _mlp(width: int, depth: int) -> list[Any]:
    hidden = [keras.layers.Dense(width, "relu") for _ in range(depth)]
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
    Case("mlp 128, short steps", (64,), 32, 400, lambda: _mlp(128, 2), False),
    Case("mlp 256", (256,), 1024, 40, lambda: _mlp(256, 4), True),
    Case("convnet 16", (24, 24, 3), 16, 40, lambda: _convnet(16), True),
)


def worker(role: str, name: str, small: bool, address: str, index: int) -> None:
    """Trains as one of two processes, or as the only one."""
    case = next(case for case in CASES if case.name == name)
    case = case.small() if small else case
    replicas = None
    if role == "both":
        millrace.distributed.initialize(address, 2, index)
        replicas = 2
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input(case.shape), *case.build()])
    optimizer = CrossReplicaOptimizer(keras.optimizers.SGD(RATE))
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    losses = millrace.OutfeedQueue()

    def body(x: Any, y: Any) -> None:
        weights = model.trainable_variables
        loss, gradients = millrace.value_and_grad(lambda: loss_of(y, model(x)), weights)
        optimizer.apply(gradients, weights)
        losses.enqueue(loss)

    infeed = millrace.InfeedQueue(lambda: _elements(case))
    train = millrace.compile(lambda n: millrace.repeat(n, body, infeed=infeed), replicas=replicas)

    def run() -> None:
        train(case.steps)
        losses.dequeue()

    run()  # compiles
    workers.serve({"run": run})


def _elements(case: Case) -> Any:
    random = np.random.default_rng(0)
    elements = [
        (
            random.standard_normal((case.batch, *case.shape), dtype=np.float32),
            random.integers(0, 10, case.batch, dtype=np.int32),
        )
        for _ in range(16)
    ]
    while True:
        yield from elements


def measure(case: Case, rounds: int, small: bool) -> str:
    """Prints the times of one case, and returns its ratio as a line."""
    arguments = (case.name, str(int(small)))
    times = workers.two_and_one(__file__, arguments, "run", rounds)
    case = case.small() if small else case
    print(f"{case.name}: {case.steps} steps of {case.batch} rows per replica")
    for name, values in times.items():
        harness.row(name, values, case.steps)
    # Each step of `two processes` is one of both replicas.
    twice = [2 * seconds for seconds in times["one process"]]
    _, line = harness.ratio(
        f"{case.name}: steps of a replica per second, two / one", twice, times["two processes"]
    )
    return line + (f"   claim >= {BAR}x" if case.claims else "")


def main() -> None:
    """Runs all cases and prints the ratios last."""
    options = harness.arguments(__doc__)
    harness.header("Replicas of a loop of one's own, two processes, one core each")
    cases = CASES[:2] if options.small else CASES  # each starts three processes
    lines = [
        measure(case, options.rounds, options.small) for case in cases if options.only in case.name
    ]
    print()
    print("\n".join(lines))


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        role, name, small, address, index = sys.argv[2:]
        worker(role, name, bool(int(small)), address, int(index))
    else:
        main()
