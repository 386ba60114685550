"""Preparing batches while the device computes.

Claims, for executions of 1 and of 10 steps: if preparation is slower than the computation, `fit`
takes at most 1.05x the time of the preparation alone; if faster, at most 1.05x the time of the
computation alone (`fit` on the same rows as arrays). Peer: plain Keras on the same data set.

    slower    prepare |#####|#####|#####|        faster    prepare |##|##|  |##|
              compute       |##|  |##|  |##|               compute    |#####|#####|#####|

Preparation waits (as for a disk) or computes (NumPy, without the interpreter's lock, on a separate
core: XLA's CPU device is limited to one). Both take twice or half the time of a step.

The last tables are the reasons for the defaults of `set_infeed_queue_options`.
"""

import os

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")

import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import millrace  # isort: skip
import keras
import numpy as np

import harness
import models

BATCH, INPUTS, OUTPUTS, UNITS = 64, 256, 10, 640
EXECUTIONS = (1, 10)
PACES = {"slower": 2.0, "faster": 0.5}  # preparation of a batch, in steps of the computation
CLAIM = 1.05


class Prepared(keras.utils.PyDataset):
    """Rows of arrays, each batch after some preparation."""

    def __init__(self, x: np.ndarray, y: np.ndarray, batch: int, work: Callable[[], object]):
        super().__init__()
        self._x, self._y, self._batch, self._work = x, y, batch, work

    def __len__(self) -> int:
        return len(self._x) // self._batch

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        self._work()
        rows = slice(index * self._batch, (index + 1) * self._batch)
        return self._x[rows], self._y[rows]

    def prepare_all(self) -> None:
        """Prepares one epoch and discards it."""
        for index in range(len(self)):
            self[index]


def waiting(seconds: float) -> Callable[[], object]:
    """Returns a preparation that leaves the processor idle."""
    return lambda: time.sleep(seconds)


def working(seconds: float) -> Callable[[], object]:
    """Returns a fixed NumPy computation, which takes about `seconds` undisturbed."""
    numbers = np.random.default_rng(0).standard_normal(4096)
    np.sort(numbers)
    one = min(harness.seconds(lambda: np.sort(numbers)) for _ in range(200))
    turns = max(1, round(seconds / one))

    def work() -> None:
        for _ in range(turns):
            np.sort(numbers)

    return work


def build(steps_per_execution: int) -> keras.Model:
    """Returns a model whose step takes a few milliseconds on one core."""
    keras.utils.set_random_seed(0)
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((INPUTS,)),
            layers.Dense(UNITS, "relu"),
            layers.Dense(UNITS, "relu"),
            layers.Dense(OUTPUTS),
        ]
    )
    model.compile(optimizer="adam", loss="mse", steps_per_execution=steps_per_execution)
    return model


class Fits:
    """The cases of one table: calls of fit, by name, with the infeed's times for ours."""

    def __init__(self, steps: int):
        self.steps = steps
        self.cases: dict[str, Callable[[], object]] = {}
        self._strategies: dict[str, millrace.Strategy] = {}

    def add(self, name: str, model: keras.Model, *data, ours: bool = True, **feed) -> None:
        """Adds fits of `model`; `feed` is the arguments of `set_infeed_queue_options`."""
        if ours:
            self._strategies[name] = millrace.Strategy()
            self._strategies[name].attach(model).set_infeed_queue_options(**feed)
        batch = BATCH if len(data) == 2 else None
        self.cases[name] = lambda: model.fit(*data, batch_size=batch, shuffle=False, verbose=0)

    def measure(self, rounds: int) -> dict[str, list[float]]:
        """Times all cases and prints their rows."""
        times = harness.paired(self.cases, rounds)
        for name, values in times.items():
            harness.row(name, values, self.steps)
            if name in self._strategies:
                feed = self._strategies[name].statistics().infeed
                fits = rounds + 1
                print(
                    f"  {'':<34} {feed.wait_seconds / feed.steps * 1e6:10.1f} us/step waited, "
                    f"{feed.wait_seconds / fits:.3f} s per fit; prepared "
                    f"{feed.prepare_seconds / feed.steps * 1e6:.1f} us/step; "
                    f"at most {feed.peak_depth} ready"
                )
        return times


def data(steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns x and y."""
    random = np.random.default_rng(0)
    shapes = ((steps * BATCH, INPUTS), (steps * BATCH, OUTPUTS))
    return tuple(random.standard_normal(shape, dtype=np.float32) for shape in shapes)


def step_seconds(x: np.ndarray, y: np.ndarray) -> float:
    """Returns the seconds of one step of the computation."""
    model = millrace.Strategy().attach(build(10))
    times = harness.paired(
        {"": lambda: model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0)}, 3
    )
    return statistics.median(times[""]) / (len(x) // BATCH)


def overlap(kind: str, work_of: Callable[[float], Callable], steps: int, rounds: int) -> list[str]:
    """Prints one kind of preparation and returns its ratios as lines."""
    x, y = data(steps)
    lines = []
    for pace, factor in PACES.items():
        for size in EXECUTIONS:
            step = step_seconds(x, y)
            dataset = Prepared(x, y, BATCH, work_of(step * factor))
            name = f"{kind}, {pace}, {size}"
            print(f"{name}: {steps} steps of {step * 1e3:.2f} ms, {size} per execution")
            fits = Fits(steps)
            fits.cases["prepare alone"] = dataset.prepare_all
            fits.add("compute alone", build(size), x, y)
            fits.add("millrace", build(size), dataset)
            fits.add("keras", build(size), dataset, ours=False)
            times = fits.measure(rounds)
            limit = "prepare alone" if factor > 1 else "compute alone"
            _, cost = harness.ratio(f"{name}: millrace / {limit}", times["millrace"], times[limit])
            _, gain = harness.ratio(f"{name}: keras / millrace", times["keras"], times["millrace"])
            lines += [f"{cost}   claim <= {CLAIM}x", gain]
    return lines


def defaults(steps: int, rounds: int) -> None:
    """Prints the times with other depths and sizes of blocks."""
    x, y = data(steps)
    step = step_seconds(x, y)
    print(f"\nprefetch_depth: preparation that is waiting takes one step, {step * 1e3:.2f} ms")
    fits = Fits(steps)
    dataset = Prepared(x, y, BATCH, waiting(step))
    for depth in (1, 2, 4, 8):
        fits.add(f"prefetch_depth={depth}, 1", build(1), dataset, prefetch_depth=depth)
    fits.measure(rounds)

    case = models.CASES[0]
    case = replace(case, rows=case.batch * steps * 20)
    x, y = case.data()
    print(f"\nmax_block_bytes: {case.name}, {case.steps} steps per execution, from a data set")
    fits = Fits(case.steps)
    dataset = Prepared(x, y, case.batch, lambda: None)
    for size in (2**9, 2**14, 2**20, 2**25):
        model = case.model(steps_per_execution=case.steps)
        fits.add(f"max_block_bytes={size}", model, dataset, max_block_bytes=size)
    fits.measure(rounds)

    case = replace(models.CASES[1], rows=models.CASES[1].batch * steps, batch=BATCH)
    x, y = case.data()
    print(f"\nmax_resident_bytes: {case.name}, {case.steps} steps per execution, from arrays")
    fits = Fits(case.steps)
    for size in (0, 2**28):
        model = case.model(steps_per_execution=case.steps)
        fits.add(f"max_resident_bytes={size}", model, x, y, max_resident_bytes=size)
    fits.measure(rounds)


def main() -> None:
    """Runs both kinds of preparation, the defaults, and prints the ratios last."""
    options = harness.arguments(__doc__, rounds=5)
    steps = 20 if options.small else 240
    harness.header("Infeed: time per step inside fit")
    lines = []
    for kind, work_of in {"waiting": waiting, "working": working}.items():
        if options.only in kind:
            lines += overlap(kind, work_of, steps, options.rounds)
    if options.only in "defaults":
        defaults(steps, options.rounds)
    print()
    print("\n".join(lines))


if __name__ == "__main__":
    main()
