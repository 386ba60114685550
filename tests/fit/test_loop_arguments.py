"""What fit, evaluate, predict and memory_report say to data and sizes that nothing trains with."""

import itertools
import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest

import millrace
from millrace.errors import DataError, OptionError

X, Y = np.ones((8, 3), "float32"), np.ones((8, 1), "float32")
TEXT = np.array(list("abcdefgh"))


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


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda m: m.fit(TEXT, Y),
            r"x is an array of text \(dtype <U1, shape \(8,\)\).*np.unique\(x",
        ),
        (lambda m: m.fit(X, TEXT), r"y is an array of text.*np.unique\(y, return_inverse=True\)"),
        (lambda m: m.fit(X, TEXT.astype("S")), "y is an array of text"),
        (lambda m: m.fit(X, TEXT.astype(object)), "y is an array of text"),
        (lambda m: m.evaluate(X, TEXT), "y is an array of text"),
        (lambda m: m.predict(TEXT), "x is an array of text"),
        (lambda m: m.predict({"a": X, "b": TEXT}), "x is an array of text"),
        (
            lambda m: m.fit(np.array([[1], [1, 2]], object), Y[:2]),
            r"x is an array of Python objects.*one length.*np.asarray\(x, 'float32'\)",
        ),
        (
            lambda m: m.fit(np.zeros(8, "datetime64[D]"), Y),
            r"x is an array of dates.*x.astype\('datetime64\[s\]'\)",
        ),
        (lambda m: m.fit(np.zeros(8, "timedelta64[s]"), Y), r"x is an array of time spans.*x / np"),
        (lambda m: m.fit(X[:0], Y[:0]), r"x has no rows: its shape is \(0, 3\)"),
        (lambda m: m.fit(X, Y[:0]), r"y has no rows: its shape is \(0, 1\)"),
        (lambda m: m.predict(X[:0]), "x has no rows"),
        (
            lambda m: m.fit(X, Y, validation_data=(X, TEXT)),
            "y of validation_data is an array of tex",
        ),
        (lambda m: m.fit(X, Y, validation_data=(X[:0], Y)), "x of validation_data has no rows"),
        (
            lambda m: m.fit(X.tolist(), Y),
            r"x is a list of Python numbers.*np.asarray\(x, 'float32'\)",
        ),
        (lambda m: m.fit(X, [1.0] * 8), "y is a list of Python numbers"),
        (lambda m: m.fit(X), r"fit\(\) was given no targets, and loss='mse' of 'net'.*Pass y"),
        (lambda m: m.evaluate(X), r"evaluate\(\) was given no targets"),
        (lambda m: m.fit((X, Y)), r"no targets.*Pass y, which fit\(\*x\) does if x is \(data"),
        (lambda m: m.fit([(X, Y)]), r"no targets.*from a generator: \(batch for batch in x\)"),
        (lambda m: m.train_on_batch(X), r"train_on_batch\(\) was given no targets.*Pass y"),
        (lambda m: m.test_on_batch(X), r"test_on_batch\(\) was given no targets"),
        (
            lambda m: m.fit(X, Y, validation_data=X),
            r"validation_data of fit\(\) was given no targets.*Set validation_data=\(x, y\)",
        ),
        (lambda m: m.fit(X, Y, validation_data=(X, None)), "validation_data.* no targets"),
        (
            lambda m: m.fit(X, Y, validation_data=(X, Y, Y, Y)),
            r"validation_data must be \(x, y\) or.*Received: a tuple of 4",
        ),
        (
            lambda m: m.fit(X, Y, validation_data=(X, Y[:3])),
            "validation_data have different numbers of rows: 8 in x, 3 in y",
        ),
        (lambda m: m.fit(X, Y, validation_data=True), "validation_data is True"),
    ],
)
def test_data_that_no_model_trains_with(model, call, message):
    with pytest.raises(DataError, match=message):
        call(model)
    assert not model.built


@pytest.mark.parametrize("nothing", [None, [], {}])
@pytest.mark.parametrize("call", ["fit", "evaluate", "predict", "train_on_batch"])
def test_no_data(model, call, nothing):
    with pytest.raises(DataError, match=rf"{call}\(\) was given no data: x=.* Pass x, an array"):
        getattr(model, call)(nothing)
    with pytest.raises(DataError, match=rf"{call}\(\) was given no data: x=None") as caught:
        getattr(model, call)(**({} if call in ("fit", "evaluate") else {"x": None}))
    assert not model.built, caught


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (3, "is 3, a single value.*one row for each sample"),
        (np.float32(3), r"is np.float32\(3.0\), a single value"),
        (np.ones(()), r"is one number: its shape is \(\)"),
        ("data.csv", r"is the text 'data.csv'.*Load the file first, with np.load"),
        (pathlib.Path("data.csv"), "is the path 'data.csv'.*Load the file first"),
        (lambda: X, r"is the function '<lambda>'.*Call it"),
        (keras.utils.PyDataset, r"is the class PyDataset.*object of it: PyDataset\(\.\.\.\)"),
        (range(8), r"is a range.*np.asarray\(list\("),
        (
            zip([X], [Y], strict=True),
            r"is an object of type zip.*Pass a(n array| generator: \(batch for)",
        ),
        (iter([(X, Y)]), "is an object of type list_iterator"),
        (itertools.repeat((X, Y)), "is an object of type repeat"),
    ],
)
@pytest.mark.parametrize("name", ["x", "y", "sample_weight"])
def test_objects_that_hold_no_batches(model, name, given, message):
    with pytest.raises(DataError, match=f"^{name} {message}"):
        model.fit(**{"x": X, "y": Y, "verbose": 0, name: given})
    assert not model.built


@pytest.mark.parametrize("given", [0, -1, 2.5, "8", True])
@pytest.mark.parametrize("call", ["fit", "evaluate", "predict"])
def test_a_batch_size_that_is_no_number_of_rows(model, call, given):
    data = (X,) if call == "predict" else (X, Y)
    with pytest.raises(OptionError, match=r"batch_size must be .*at least 1\. Received: "):
        getattr(model, call)(*data, batch_size=given, verbose=0)
    assert not model.built


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
