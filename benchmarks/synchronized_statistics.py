"""Memory and time of updates whose micro-batches share the statistics of BatchNormalization.

Peer, in the same run: plain Keras with the big batch, whose losses and weights they are. The last
line has the ratio to its time. No memory is claimed to be saved without a budget.

    keras          one step of all rows, in plain Keras (its memory: the same step under a strategy)
    accumulated    micro-batches, each normalized by its own statistics: other numbers
    synchronized   micro-batches, computed as one batch
    budget 0.6     the same, with forward values computed again to take 0.6 of its memory
"""

import millrace  # isort: skip
import statistics
import time

import keras
import numpy as np
from keras import layers

import harness

MICRO_BATCHES = 8
KINDS = ("keras", "accumulated", "synchronized", "budget 0.6")


def block(x, width: int, stride: int = 1):
    """A residual block of two convolutions."""
    y = layers.Conv2D(width, 3, stride, padding="same", use_bias=False)(x)
    y = layers.Activation("relu")(layers.BatchNormalization()(y))
    y = layers.BatchNormalization()(layers.Conv2D(width, 3, padding="same", use_bias=False)(y))
    if stride > 1:
        x = layers.BatchNormalization()(layers.Conv2D(width, 1, stride, use_bias=False)(x))
    return layers.Activation("relu")(layers.add([x, y]))


def resnet(depth: int) -> keras.Model:
    """A ResNet for images of 32 x 32."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((32, 32, 3))
    x = layers.Conv2D(16, 3, padding="same", use_bias=False)(inputs)
    x = layers.Activation("relu")(layers.BatchNormalization()(x))
    for number, width in enumerate((16, 32, 64)):
        for index in range(depth):
            x = block(x, width, 2 if number and not index else 1)
    return keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling2D()(x)))


class Run:
    """A kind of training, and its seconds for each update."""

    def __init__(self, kind: str, depth: int, data: tuple[np.ndarray, np.ndarray], rows: int):
        """Compiles it; one epoch warms it up."""
        self._data, self.seconds = data, list[float]()
        self._rows, self._updates = rows, len(data[0]) // rows
        model = self._model = resnet(depth)
        steps = 1
        strategy = millrace.Strategy(devices=1)
        if kind != "keras":
            steps = MICRO_BATCHES
            model = strategy.attach(model)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.01), loss, steps_per_execution=steps)
        self._batch_size = rows // steps
        if kind != "keras":
            model.set_gradient_accumulation_options(
                gradient_accumulation_steps_per_replica=steps,
                synchronized_batch_statistics=kind != "accumulated",
            )
            if kind == "budget 0.6":
                model.set_recomputation_options(budget=0.6)
        measured = model
        if kind == "keras":  # the same step under a strategy, which reports what it takes
            measured = strategy.attach(resnet(depth))
            measured.compile(keras.optimizers.SGD(0.01), loss)
        batch = tuple(part[: self._batch_size] for part in data)
        self.peak = strategy.memory_report(measured, batch).peak / 2**20
        self.loss = self._epoch()

    def _epoch(self) -> float:
        arguments = {"batch_size": self._batch_size, "shuffle": False, "verbose": 0}
        return self._model.fit(*self._data, **arguments).history["loss"][-1]

    def measure(self) -> None:
        """Times an epoch."""
        begin = time.perf_counter()
        self.loss = self._epoch()
        self.seconds.append((time.perf_counter() - begin) / self._updates)


def main() -> None:
    """Prints a row for each kind of training."""
    options = harness.arguments(__doc__, rounds=5)
    harness.header("Statistics of BatchNormalization over all micro-batches of an update")
    rows, updates = (32, 1) if options.small else (128, 2)
    random = np.random.default_rng(0)
    x = random.random((rows * updates, 32, 32, 3), dtype="float32")
    data = (x, random.integers(0, 10, rows * updates))
    runs = {kind: Run(kind, 1, data, rows) for kind in KINDS}
    for _ in range(options.rounds):
        for run in runs.values():  # in turns, so that other programs disturb all alike
            run.measure()
    print(
        f"{MICRO_BATCHES} micro-batches of {rows // MICRO_BATCHES} rows, {options.rounds} repeats"
    )
    print(f"{'':14} {'peak MiB':>9} {'s an update, median (least to most)':>38}   loss")
    for kind, run in runs.items():
        seconds, spread = run.seconds, f"({min(run.seconds):.3f} to {max(run.seconds):.3f})"
        text = f"{statistics.median(seconds):.3f} {spread}"
        print(f"{kind:14} {run.peak:9.1f} {text:>38}   {run.loss:.6f}")
    of = {kind: statistics.median(run.seconds) for kind, run in runs.items()}
    ratios = ", ".join(f"{kind} {of[kind] / of['keras']:.2f}x" for kind in KINDS[1:])
    print(f"time against plain Keras with the big batch: {ratios}")


if __name__ == "__main__":
    main()
