"""Short calls: what a strategy's scope costs where no long compiled loop runs.

A model of two dense layers in a scope and in plain Keras, called in turns: batches by hand, short
epochs, validation, predictions, callbacks, metrics, generators, and two replicas, whose updates
take as many rows as those of plain Keras. Claim: at most 1.10x plain Keras on one device.
"""

import millrace  # isort: skip - it makes JAX the backend of Keras

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import keras
import numpy as np

import harness

CLAIM = 1.10
ROWS = 32  # of a batch
CALLS = 40  # timed together
Call = Callable[[keras.Model], object]


class Losses(keras.callbacks.Callback):
    """A callback that reads the loss of every step."""

    def __init__(self) -> None:
        super().__init__()
        self.losses: list[float] = []

    def on_train_batch_end(self, batch: int, logs: dict[str, float]) -> None:
        """Keeps a loss."""
        self.losses.append(float(logs["loss"]))


@dataclass(frozen=True)
class Case:
    """One kind of call."""

    name: str
    steps: int  # that the time is divided by
    call: Call
    metrics: tuple[str, ...] = ()
    of_replicas: Call | None = None  # the same for two replicas of the model


def make(case: Case) -> keras.Model:
    """Returns a compiled model of two layers."""
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(32, "relu"), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((16,)), *layers])
    model.compile("adam", "mse", metrics=list(case.metrics))
    return model


def rows(batches: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns inputs and targets of some batches."""
    random = np.random.default_rng(0)
    return tuple(random.normal(size=(batches * ROWS, width)).astype("float32") for width in (16, 1))


def endless(x: np.ndarray, y: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields batches again and again."""
    while True:
        for begin in range(0, len(x), ROWS):
            yield x[begin : begin + ROWS], y[begin : begin + ROWS]


def cases(calls: int) -> Iterator[Case]:
    """Yields the cases; each makes `calls` calls, or epochs."""
    x, y = rows(1)
    two, twenty = rows(2), rows(20)
    quiet = {"batch_size": ROWS, "verbose": 0}

    def often(call: Call) -> Call:
        def all_calls(model: keras.Model) -> None:
            for _ in range(calls):
                call(model)

        return all_calls

    mae = ("mae",)
    by_hand = often(lambda model: model.train_on_batch(x, y))
    yield Case("train_on_batch", calls, by_hand)
    yield Case("train_on_batch, metrics", calls, by_hand, mae)
    yield Case("test_on_batch", calls, often(lambda model: model.test_on_batch(x, y)))
    yield Case("predict_on_batch", calls, often(lambda model: model.predict_on_batch(x)))
    yield Case("predict of a batch", calls, often(lambda model: model.predict(x, **quiet)))
    yield Case("evaluate of a batch", calls, often(lambda model: model.evaluate(x, y, **quiet)))
    yield Case("fit of two steps", calls, often(lambda model: model.fit(*two, **quiet)))
    epochs = {"epochs": calls, **quiet}
    yield Case("epochs of one step", calls, lambda model: model.fit(x, y, **epochs))
    yield Case("epochs of two steps", calls, lambda model: model.fit(*two, **epochs))
    validated = {"validation_data": two, **epochs}
    yield Case("epochs of two steps, validated", calls, lambda model: model.fit(*two, **validated))
    steps = 20 * calls
    yield Case("predict", steps, often(lambda model: model.predict(twenty[0], **quiet)))
    yield Case("evaluate", steps, often(lambda model: model.evaluate(*twenty, **quiet)))
    yield Case("fit", steps, lambda model: model.fit(*twenty, **epochs))
    yield Case("fit, metrics", steps, lambda model: model.fit(*twenty, **epochs), mae)
    read = lambda model: model.fit(*twenty, callbacks=[Losses()], **epochs)  # noqa: E731
    yield Case("fit, callback", steps, read)
    stream = {"epochs": calls, "steps_per_epoch": 20, "verbose": 0}
    yield Case("fit, generator", steps, lambda model: model.fit(endless(*twenty), **stream))
    half = {**epochs, "batch_size": ROWS // 2}
    whole = lambda model: model.fit(*twenty, **epochs)  # noqa: E731
    yield Case("fit, two replicas", steps, whole, (), lambda model: model.fit(*twenty, **half))


def measure(case: Case, rounds: int) -> tuple[float, str]:
    """Prints the times of a case, and returns the ratio to plain Keras with its line."""
    plain = make(case)
    with millrace.Strategy(devices=2 if case.of_replicas else 1, cache_dir=None).scope():
        attached = make(case)
    in_scope = case.of_replicas or case.call
    sides = {"keras": lambda: case.call(plain), "millrace": lambda: in_scope(attached)}
    times = harness.paired(sides, rounds)
    for side, values in times.items():
        harness.row(f"{case.name}: {side}", values, case.steps)
    return harness.ratio(f"{case.name}: millrace / keras", times["millrace"], times["keras"])


def main() -> None:
    """Measures all cases."""
    options = harness.arguments(__doc__ or "")
    millrace.Strategy(devices="cpu:2", cache_dir=None)  # before JAX starts
    harness.header("Short calls in a scope")
    found = []
    for case in cases(4 if options.small else CALLS):
        if options.only in case.name:
            found.append((case, *measure(case, options.rounds)))
    print()
    for case, _, line in found:
        print(line if case.of_replicas else f"{line}   claim <= {CLAIM:.2f}x")
    longest = max(middle for case, middle, _ in found if not case.of_replicas)
    print(f"the longest on one device = {longest:.2f}x")


if __name__ == "__main__":
    main()
