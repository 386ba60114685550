"""Long runs: memory, threads and file descriptors stay what they were after a warm-up.

MILLRACE_SOAK=1 pytest -s -m slow tests/fit/test_soak.py      prints the figures
"""

import os
import tempfile

import keras
import numpy as np
import pytest

import millrace
from resources import give_back, held, resident_bytes

# TensorStatistics says that it drops old rows, as it should here.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:TensorStatistics has reached")]

ROWS, BATCH = 64, 4
X = np.random.default_rng(0).normal(size=(ROWS, 8)).astype("float32")
Y = X.sum(axis=1, keepdims=True)
GROWTH = 0.02  # of the resident memory


class Enqueues(keras.layers.Layer):
    def __init__(self, queue):
        super().__init__()
        self._queue = queue

    def call(self, inputs):
        self._queue.enqueue(inputs)
        return inputs


@pytest.fixture(autouse=True)
def own_temporary_files(tmp_path_factory, monkeypatch):
    """Other processes put temporary files beside those of this one at any time."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("temporary")))


@pytest.fixture
def queue():
    return millrace.OutfeedQueue()


@pytest.fixture
def model(queue):
    """Two stages, and a queue that takes a value of every micro-batch."""
    with millrace.Strategy(devices=2).scope():
        inputs = keras.Input((8,))
        with millrace.PipelineStage(0):
            hidden = keras.layers.Dense(16, activation="relu")(inputs)
        with millrace.PipelineStage(1):
            outputs = keras.layers.Dense(1)(Enqueues(queue)(hidden))
        model = keras.Model(inputs, outputs)
    model.set_pipelining_options(gradient_accumulation_steps_per_replica=2)
    model.set_infeed_queue_options(max_resident_bytes=0)
    model.compile("adam", "mse", steps_per_execution=2)
    return model


def callbacks_of_a_run(directory):
    """Every callback that keeps something, each with a bound."""
    return [
        millrace.callbacks.TensorStatistics("*", "*", max_rows=64),
        millrace.callbacks.Checkpoint(directory, every_steps=5 * ROWS, keep=2),
    ]


def soak(turn, turns, warm):
    """Calls `turn` some times; returns what is held, and the bytes, after the warm-up and then."""
    measured = []
    for count in (warm, turns - warm):
        for _ in range(count):
            turn()
        resources = held()
        give_back()
        measured.append((resources, resident_bytes()))
    (before, first), (after, last) = measured
    if os.environ.get("MILLRACE_SOAK"):
        print(f"\n{turns} turns: {first / 2**20:.1f} -> {last / 2**20:.1f} MiB")
        print(f"({last / first - 1:+.2%}), {len(after.threads)} threads,")
        print(f"{after.descriptors} descriptors, {before.arrays} -> {after.arrays} arrays")
    return before, first, after, last


def assert_flat(before, first, after, last):
    assert after.is_within(before), (before, after)
    assert last <= first * (1 + GROWTH), f"{first / 2**20:.1f} -> {last / 2**20:.1f} MiB"


def test_two_thousand_executions(model, queue, tmp_path):
    callbacks = callbacks_of_a_run(tmp_path)
    executions = ROWS // BATCH // 2  # in an epoch

    def turn():
        model.fit(X, Y, BATCH, epochs=400 // executions, verbose=0, callbacks=callbacks)
        assert len(queue.dequeue()) == 2 * 400

    assert_flat(*soak(turn, turns=8, warm=3))


@pytest.mark.exhaustive
def test_two_hundred_fits(model, queue, tmp_path):
    def turn():
        callbacks = callbacks_of_a_run(tmp_path)
        model.fit(
            X,
            Y,
            BATCH,
            verbose=0,
            callbacks=callbacks,
            validation_data=(X, Y),
            validation_batch_size=BATCH,
        )
        model.predict(X, BATCH, verbose=0)
        queue.dequeue()

    assert_flat(*soak(turn, turns=260, warm=60))
