"""What a trace has left in a program as a constant is named when it changes."""

import logging
import re

import jax.numpy as jnp
import keras
import numpy as np
import pytest

from millrace import Strategy

SCALE = 1.0
UNTRACKED = [keras.Variable(1.0)]
GENERATOR = keras.random.SeedGenerator(1)
X = np.ones((8, 4), np.float32)


def make_loss():
    rate = 1.0

    def scaled(y, p):
        return rate * SCALE * UNTRACKED[0] * (y - p) ** 2

    def put(value):
        nonlocal rate
        rate = value

    return scaled, put


class Reads(keras.layers.Layer):
    """A layer with attributes that its `call` reads, sets, or does neither."""

    def __init__(self):
        super().__init__(name="reads")
        self.number, self.table, self.options = 1.0, np.ones(4, np.float32), {"bias": 0.0}
        self.mask, self.calls, self.best = jnp.ones(4), 0, None

    def call(self, x):
        self.calls += 1
        return self.shifted(x * self.number * self.mask) * self.table

    def shifted(self, x):
        return x + self.options["bias"]

    def summary(self):
        return self.best


class Draws(keras.layers.Layer):
    def __init__(self):
        super().__init__(name="draws")
        self.generator, self.seed = np.random.default_rng(0), keras.random.SeedGenerator(0)

    def call(self, x):
        x = x + keras.random.normal((), seed=self.seed) + self.generator.normal()
        return x + np.random.normal() + keras.random.normal((), seed=GENERATOR)

    def batch(self):
        return np.random.permutation(4)


def attached(*layers, loss="mse"):
    model = keras.Sequential([keras.Input((4,)), *layers, keras.layers.Dense(1)], name="net")
    model = Strategy(devices=1).attach(model)
    model.compile(keras.optimizers.SGD(0.0, momentum=0.5), loss, steps_per_execution=2)
    return model


def fit(model, **arguments):
    options = {"batch_size": 4, "verbose": 0, "shuffle": False} | arguments
    return model.fit(X, X[:, :1], **options).history["loss"]


@pytest.fixture
def warned(caplog):
    """Returns the names in the warnings since the last call."""

    def names():
        texts = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
        caplog.clear()
        return sorted(re.match(r"`(\w[\w.]*)`.*?: (changed|drew)", text)[1] for text in texts)

    return names


def test_each_value_that_has_changed_is_named_once(warned, monkeypatch):
    loss, put_rate = make_loss()
    layer = Reads()
    model = attached(layer, keras.layers.Dropout(0.0), loss=loss)
    first = fit(model)
    fit(model, epochs=2)
    model.evaluate(X, X[:, :1], verbose=0)
    assert warned() == []
    layer.number, layer.options["bias"], layer.mask = 2.0, 1.0, jnp.zeros(4)
    layer.table[0] = 3.0  # in place
    model.layers[1].rate = 0.9
    model.optimizer.momentum = 0.9
    put_rate(2.0)
    monkeypatch.setitem(globals(), "SCALE", 2.0)
    UNTRACKED[0].assign(2.0)
    assert fit(model) == first
    of_step = ["SCALE", "UNTRACKED", "mask", "momentum", "number", "options", "rate", "rate"]
    assert warned() == [*of_step, "table"]
    fit(model, epochs=2)
    model.evaluate(X, X[:, :1], verbose=0)
    assert warned() == []
    UNTRACKED[0].assign(1.0)


def test_the_warning_says_what_to_do_and_that_helps(caplog):
    model = attached(layer := Reads())
    first = fit(model)
    layer.number = 2.0
    assert fit(model) == first
    assert caplog.messages == [
        "`number` of 'reads' (Reads): changed from 1.0 to 2.0 since the train function of 'net' "
        "was compiled, which goes on with the old value, a constant of its program. Keep it in a "
        "keras.Variable that is an attribute of the model or a layer, and assign to that; or call "
        "compile() again."
    ]
    model.compile(model.optimizer, "mse", steps_per_execution=2)
    other = fit(model)
    assert other != first
    plain = keras.Sequential([keras.Input((4,)), layer, model.layers[-1]])
    assert other == pytest.approx([plain.compile("sgd", "mse") or plain.evaluate(X, X[:, :1])])


def test_a_callback_that_changes_it_between_epochs_is_noticed(warned):
    model = attached(layer := Reads())
    change = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: setattr(layer, "number", 1.0 + epoch)
    )
    fit(model, epochs=2, callbacks=[change])
    assert warned() == []  # the second value came after the last step
    fit(model, epochs=3, callbacks=[change])
    assert warned() == ["number"]


def test_what_no_traced_code_reads_is_free_to_change(warned):
    model = attached(layer := Reads())
    fit(model)
    layer.best, layer.calls, layer.note, model.note = 3.0, 7, "new", "new"
    model.optimizer.learning_rate = 0.5
    fit(model)
    model.predict(X, verbose=0)  # traces `call` again, which counts
    fit(model)
    assert warned() == []


def test_random_numbers_of_the_trace_are_named(warned):
    fit(attached(Draws()))
    assert warned() == ["GENERATOR", "generator", "np.random.normal"]
