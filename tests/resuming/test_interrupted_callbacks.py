"""Trainings that end between an execution and the callbacks after it, or in one of them."""

import os
import signal

import keras
import pytest
from breaks import BATCH, ROWS, STEPS, X, Y, arrays, expect_equal, make, train


class Raises(keras.callbacks.Callback):
    """Ends the training itself, as a callback that watches the time does."""

    def __init__(self, call):
        super().__init__()
        self.left = call

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt


class Presses(Raises):
    """Ctrl-C arrives while an execution runs."""

    def on_train_batch_begin(self, batch, logs=None):
        self.left -= 1
        if not self.left:
            os.kill(os.getpid(), signal.SIGINT)

    def on_train_batch_end(self, batch, logs=None):
        pass


class EndsEpoch(Raises):
    """Ends the training where an epoch has only its other callbacks left."""

    def on_train_batch_end(self, batch, logs=None):
        pass

    def on_epoch_end(self, epoch, logs=None):
        super().on_train_batch_end(epoch)


class Iterable:
    """Has no length, so whether more batches come is known when they are asked for."""

    def __init__(self):
        self.index = 0

    def __iter__(self):
        while self.index < STEPS:
            begin = self.index * BATCH
            self.index += 1
            yield X[begin : begin + BATCH], Y[begin : begin + BATCH]
        self.index = 0

    def get_state(self):
        return self.index

    def set_state(self, state):
        self.index = state


def endless():
    while True:
        for begin in range(0, ROWS, BATCH):
            yield X[begin : begin + BATCH], Y[begin : begin + BATCH]


SOURCES = {
    "arrays": arrays,
    "generator": lambda: {"x": endless(), "steps_per_epoch": STEPS, "shuffle": False},
    "iterable": lambda: {"x": Iterable()},
}


def compare(directory, callback, call, source, **model):
    def run(directory=None, call=0):
        build = lambda: make(**model)  # noqa: E731
        callbacks = lambda: [callback(call)]  # noqa: E731
        return train(directory, build=build, data=SOURCES[source], callbacks=callbacks)

    whole = run()
    with pytest.raises(KeyboardInterrupt):
        run(directory, call)
    expect_equal(whole, run(directory), all_steps=False)


@pytest.mark.parametrize(
    "source",
    ["arrays", *(pytest.param(name, marks=pytest.mark.slow) for name in ("generator", "iterable"))],
)
@pytest.mark.parametrize(
    ("executed", "call"),
    [(3, 1), (3, 2), *(pytest.param(1, call, marks=pytest.mark.slow) for call in (2, STEPS))],
)
@pytest.mark.parametrize("callback", [Raises, Presses])
def test_no_update_is_trained_twice(tmp_path, callback, executed, call, source):
    compare(tmp_path, callback, call, source, executed=executed)


@pytest.mark.slow
@pytest.mark.parametrize("callback", [Raises, Presses])
@pytest.mark.parametrize(
    "model",
    [{"devices": 2, "stages": [0, 0, 1, 1, 1], "accumulation": 1}, {"devices": 2, "executed": 2}],
    ids=["pipeline", "replicas"],
)
@pytest.mark.parametrize("call", [1, STEPS // 2, STEPS])
def test_devices(tmp_path, model, call, callback):
    compare(tmp_path, callback, call, "generator", **model)


@pytest.mark.parametrize("devices", [1, 2])
def test_an_epoch_that_has_ended(tmp_path, devices):
    compare(tmp_path, EndsEpoch, 1, "arrays", devices=devices)


@pytest.mark.parametrize("callback", [Presses, EndsEpoch])
def test_averages_are_not_taken_for_weights(tmp_path, callback):
    """Keras puts an optimizer's averages into the weights, whatever ends the training."""
    optimizer = lambda: keras.optimizers.SGD(0.01, use_ema=True)  # noqa: E731
    compare(tmp_path, callback, 1, "arrays", optimizer=optimizer, executed=STEPS)
