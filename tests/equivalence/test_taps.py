"""What leaves the programs of replicas is what leaves those of one device, batch by batch."""

import keras
import numpy as np
import pytest
from keras import layers

import millrace
from case_marks import slow
from millrace.base.options import TapRequest
from millrace.base.records.tensors import STATISTICS
from millrace.programs.taps.outfeed_queue import OutfeedQueue
from millrace.run.fit.controller import controller_of

EVERYTHING = TapRequest(activations=("*",), micro_gradients=("*",), gradients=("*",))
ROWS = 8


class Listener:
    def __init__(self):
        self.blocks = []

    def statistics(self, block):
        self.blocks.append(block)

    def of(self, entries):
        """All values so far of "of_steps" or "of_updates", by tensor, `[entries, 8]`."""
        found = [getattr(block, entries) for block in self.blocks]
        found = [rows for rows in found if rows is not None]
        values = np.concatenate([rows.values for rows in found])
        return {str(t): values[:, k] for k, t in enumerate(found[0].tensors)}


class Sends(layers.Layer):
    """Enqueues what passes through."""

    def __init__(self, queue, **arguments):
        super().__init__(**arguments)
        self.queue = queue

    def call(self, x):
        self.queue.enqueue({"z": x, "a": keras.ops.mean(x)})
        return x


def make_data(batches):
    random = np.random.default_rng(3)
    x = random.standard_normal((batches * ROWS, 5)).astype("float32")
    return x, x.sum(1, keepdims=True)


def make_model(replicas, accumulation, executed, queue=None, optimizer="adam"):
    """Returns a model whose update takes `replicas * accumulation` batches."""
    keras.utils.set_random_seed(1)
    middle = [Sends(queue, name="sends")] if queue is not None else []
    with millrace.Strategy(devices=replicas).scope():
        model = keras.Sequential(
            [
                keras.Input((5,)),
                layers.Dense(16, "relu", name="first"),
                layers.Dropout(0.25, seed=2, name="dropout"),
                *middle,
                layers.Dense(1, name="second"),
            ]
        )
    model.compile(optimizer, "mse", steps_per_execution=replicas * accumulation * executed)
    model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=accumulation)
    return model


def watched(model, batches, taps=EVERYTHING):
    listener, controller = Listener(), controller_of(model)
    controller.watch(listener, taps)
    model.fit(*make_data(batches), batch_size=ROWS, shuffle=False, verbose=0)
    controller.watchers.unwatch(listener)
    return listener


@pytest.mark.slow
@pytest.mark.parametrize("batches", [13, 12])  # the last update of 13 has one batch
@pytest.mark.parametrize("replicas", [2, 4])
def test_replicas_report_each_batch_as_one_device_does(replicas, batches):
    one = watched(make_model(1, 4, 2), batches)
    many = watched(make_model(replicas, 4 // replicas, 2), batches)
    updates = -(-batches // 4)
    for entries, count in (("of_steps", batches), ("of_updates", updates)):
        mine, theirs = many.of(entries), one.of(entries)
        assert list(mine) == list(theirs)
        for tensor, rows in mine.items():
            assert rows.shape == (count, len(STATISTICS)), tensor
            np.testing.assert_allclose(
                rows, theirs[tensor], rtol=2e-5, atol=1e-6, err_msg=f"{entries} {tensor}"
            )


@pytest.mark.parametrize("replicas", [1, 2, 4])
def test_what_a_layer_enqueues_arrives_once_for_each_round(replicas):
    queue = OutfeedQueue()
    model = make_model(replicas, 1, 3, queue)
    x, y = make_data(12)
    model.fit(x, y, batch_size=ROWS, shuffle=False, verbose=0)
    rounds = (12 // replicas, replicas) if replicas > 1 else (12,)
    found = queue.dequeue()
    assert list(found) == ["z", "a"]  # in the order of the dict that was enqueued
    assert found["z"].shape == (*rounds, ROWS, 16)
    assert found["a"].shape == rounds
    np.testing.assert_allclose(found["z"].mean((-2, -1)), found["a"], rtol=1e-5)
    assert queue.dequeue()["z"].shape == (0, *rounds[1:], ROWS, 16)


@pytest.mark.slow
@pytest.mark.parametrize("replicas", [1, 2])
def test_watching_changes_no_weight(replicas):
    plain, looked_at = (make_model(replicas, 2, 2) for _ in range(2))
    plain.fit(*make_data(8), batch_size=ROWS, shuffle=False, verbose=0)
    watched(looked_at, 8)
    for mine, theirs in zip(looked_at.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("replicas", [1, slow(2)])
def test_a_halted_update_is_not_applied(replicas):
    """Batch 5 of 12 has a NaN: of the updates of two batches, two are applied."""
    x, y = make_data(12)
    x[5 * ROWS] = np.nan
    model = make_model(replicas, 2 // replicas, 6)
    listener, controller = Listener(), controller_of(model)
    controller.watch(listener, TapRequest(gradients=("*",), stops=True))
    model.fit(x, y, batch_size=ROWS, shuffle=False, verbose=0)
    halted = controller.functions.running.halted
    controller.watchers.unwatch(listener)
    assert halted.step == 4
    for k, (mine, _) in enumerate(halted.batches):
        np.testing.assert_array_equal(mine, x[(4 + k) * ROWS : (5 + k) * ROWS])
    assert sum(block.updates for block in listener.blocks) == 3
    plain = make_model(replicas, 2 // replicas, 2)
    plain.fit(x[: 4 * ROWS], y[: 4 * ROWS], batch_size=ROWS, shuffle=False, verbose=0)
    for mine, theirs in zip(model.variables, plain.variables, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6, atol=1e-7, err_msg=mine.path)
    assert int(model.optimizer.iterations) == 2
