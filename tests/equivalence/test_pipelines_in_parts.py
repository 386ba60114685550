"""Batches of a pipeline in parts: each part is a micro-batch, and steps stay those of `fit`."""

import keras
import numpy as np
import pytest
from keras import layers

import millrace
from case_marks import slow
from millrace.errors import ModelError, TapError, UnsupportedError

RNG = np.random.default_rng(0)
X = RNG.normal(size=(72, 6)).astype("float32")
Y = RNG.normal(size=(72, 2)).astype("float32")
WORDS = RNG.integers(1, 20, size=(72, 7)) * (np.arange(7) < RNG.integers(1, 8, size=(72, 1)))


def dense():
    keras.utils.set_random_seed(3)
    layers_ = [layers.Dense(9, activation="tanh", name="first"), layers.Dense(2, name="second")]
    return keras.Sequential([keras.Input((6,)), *layers_])


def words():
    keras.utils.set_random_seed(3)
    embedding = layers.Embedding(20, 8, mask_zero=True, name="first")
    return keras.Sequential([keras.Input((7,)), embedding, layers.Dense(20, name="second")])


def crossentropy():
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


SUBJECTS = {"dense": (dense, X, Y, "mse"), "words": (words, WORDS, WORDS[:, ::-1], crossentropy())}


def compiled(name, **changes):
    make, _, _, loss = SUBJECTS[name]
    model = make()
    model.compile(**{"optimizer": keras.optimizers.Adam(0.01), "loss": loss, **changes})
    return model


def in_parts(name, devices=2, steps=1, micro_batch=4, schedule="1f1b", **changes):
    with millrace.Strategy(devices=f"cpu:{devices}").scope():
        model = compiled(name, **changes)
    calls = model.get_pipeline_stage_assignment()
    for call in calls:
        call.pipeline_stage = int(call.layer.name == "second")
    model.set_pipeline_stage_assignment(calls)
    model.set_pipelining_options(
        gradient_accumulation_steps_per_replica=steps, pipeline_schedule=schedule
    )
    model.set_gradient_accumulation_options(micro_batch=micro_batch)
    return model


class Batches(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.number = 0

    def on_train_batch_end(self, batch, logs=None):
        self.number += 1


def fit(name, model, batch_size=24, rows=72, **arguments):
    _, x, y, _ = SUBJECTS[name]
    arguments = {"epochs": 2, "shuffle": False, "verbose": 0, **arguments}
    history = model.fit(x[:rows], y[:rows], batch_size=batch_size, **arguments)
    return history.history, [np.array(v) for v in (*model.weights, *model.optimizer.variables)]


def assert_same(found, expected):
    for value, other in zip(found[1], expected[1], strict=True):
        np.testing.assert_allclose(value, other, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(
    ("name", "rows"), [("words", 67), slow("words", 72), slow("dense", 67), slow("dense", 72)]
)
def test_updates_are_those_of_whole_batches(name, rows):
    batches = Batches()
    found = fit(name, in_parts(name), rows=rows, callbacks=[batches])
    expected = fit(name, compiled(name), rows=rows)
    assert_same(found, expected)
    assert batches.number == 6
    if name == "dense":
        np.testing.assert_allclose(found[0]["loss"], expected[0]["loss"], rtol=1e-5)


@pytest.mark.parametrize(
    ("devices", "steps", "schedule"),
    [slow(2, 3, "1f1b"), (4, 1, "1f1b"), slow(2, 1, "zero_bubble")],
)
def test_accumulation_replicas_and_schedules(devices, steps, schedule):
    found = fit("words", in_parts("words", devices, steps, 5, schedule), batch_size=12)
    assert_same(found, fit("words", compiled("words"), batch_size=12 * steps * devices // 2))


@pytest.mark.slow
def test_schedules_give_the_same_bits():
    found, *others = (
        fit("words", in_parts("words", schedule=each))[1] for each in ("1f1b", "gpipe", "grouped")
    )
    for other in others:
        for a, b in zip(found, other, strict=True):
            np.testing.assert_array_equal(a, b)


def test_what_parts_cannot_do_is_refused():
    with pytest.raises(UnsupportedError, match="micro_batch='auto' chooses for models in one"):
        fit("dense", in_parts("dense", micro_batch="auto"))
    with pytest.raises(TapError, match="micro_batch=4 makes several micro-batches"):
        fit("dense", in_parts("dense"), callbacks=[millrace.callbacks.NaNWatch()])
    with pytest.raises(ModelError, match="is a sum over the rows of a batch"):
        fit("dense", in_parts("dense", loss=keras.losses.MeanSquaredError(reduction="sum")))
