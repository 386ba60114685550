"""What fit, evaluate, predict and memory_report say to sizes that nothing trains with."""

import subprocess
import sys

import keras
import numpy as np
import pytest

import millrace
from millrace.errors import DataError, OptionError

X, Y = np.ones((8, 3), "float32"), np.ones((8, 1), "float32")


@pytest.fixture(scope="module")
def strategy():
    return millrace.Strategy(devices=1)


@pytest.fixture(scope="module")
def model(strategy):
    """Not built: Keras would leave it half built after an error of its own."""
    with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(1)], name="net")
    model.compile("sgd", "mse")
    return model


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (0, r"must be at least 1. Received: 0. Set steps_per_execution=1 or more"),
        (-1, r"must be at least 1. Received: -1"),
        (
            "auto",
            r"must be a whole number of at least 1. Received: 'auto' of type str.*such as 100",
        ),
        (2.5, r"must be a whole number of at least 1. Received: 2.5"),
        (4.0, r"Received: 4.0 of type float. Set steps_per_execution=4"),
        (None, r"Received: None"),
        (True, r"Received: True"),
    ],
)
@pytest.mark.parametrize("call", ["fit", "evaluate", "predict", "memory_report"])
def test_a_steps_per_execution_that_is_no_number_of_steps(strategy, given, message, call):
    with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(1)], name="net")
    model.compile("sgd", "mse", steps_per_execution=given)
    calls = {
        "fit": lambda: model.fit(X, Y, verbose=0),
        "evaluate": lambda: model.evaluate(X, Y, verbose=0),
        "predict": lambda: model.predict(X, verbose=0),
        "memory_report": lambda: strategy.memory_report(model, (X, Y)),
    }
    with pytest.raises(OptionError, match=message) as raised:
        calls[call]()
    assert "It is the argument of 'net'.compile()" in str(raised.value)
    assert not model.built


def test_numbers_of_numpy_are_numbers(strategy):
    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", steps_per_execution=np.int64(2))
    model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=np.int32(2))
    before = strategy.statistics()
    model.fit(X, Y, batch_size=2, verbose=0)
    after = strategy.statistics()
    assert after.executions - before.executions == 2
    compiling = after.compile_seconds - before.compile_seconds
    assert after.loop_compile_seconds - before.loop_compile_seconds == pytest.approx(compiling)
    assert after.loop_seconds - before.loop_seconds > compiling > 0


@pytest.mark.parametrize("batch", [X, (X,), ((8, 3), "float32")])
def test_a_memory_report_without_targets(strategy, model, batch):
    with pytest.raises(DataError, match=r"memory_report\(\) was given no targets.*\(x\[:32\], y"):
        strategy.memory_report(model, batch)


def test_a_list_is_not_a_pair_of_data_and_targets(strategy, model):
    with pytest.raises(DataError, match=r"A list is x alone, of several inputs. Set batch_spec to"):
        strategy.memory_report(model, [X, X])


@pytest.mark.parametrize("steps", [0, -1, "a", 1.5])
def test_a_memory_report_of_no_number_of_steps(strategy, model, steps):
    with pytest.raises(OptionError, match="steps_per_epoch must be"):
        strategy.memory_report(model, (X, Y), steps_per_epoch=steps)


def test_what_needs_no_targets_gets_none(strategy):
    class Penalty(keras.layers.Layer):
        def call(self, x):
            self.add_loss(keras.ops.sum(x**2))
            return x

    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1), Penalty()])
    model.compile("sgd")
    assert model.fit(X, verbose=0).history["loss"][0] > 0
    assert strategy.memory_report(model, X).peak > 0


def test_losses_of_some_outputs_only(strategy):
    inputs = keras.Input((3,))
    with strategy.scope():
        model = keras.Model(inputs, {"a": keras.layers.Dense(1)(inputs), "b": inputs})
    model.compile("sgd", {"a": "mse", "b": None})
    assert model.fit(X, {"a": Y, "b": None}, verbose=0).history["loss"][0] >= 0


@pytest.mark.slow
def test_a_model_with_boundaries_needs_millrace_to_load(strategy, tmp_path):
    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), millrace.layers.RecomputationCheckpoint()])
    model.save(tmp_path / "model.keras")
    assert keras.saving.load_model(tmp_path / "model.keras").layers  # registered by the import
    code = f"import keras; keras.saving.load_model({str(tmp_path / 'model.keras')!r})"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "Could not locate class 'RecomputationCheckpoint'" in found.stderr  # docs/debugging.md
