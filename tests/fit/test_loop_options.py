"""What fit, evaluate and predict say to numbers and callbacks that Keras would stumble over."""

import contextlib

import keras
import numpy as np
import pytest

import millrace
from millrace.errors import OptionError

X, Y = np.ones((8, 3), "float32"), np.ones((8, 1), "float32")
VALIDATION = {"validation_data": (X, Y)}
STOPPING = keras.callbacks.EarlyStopping


@pytest.fixture(scope="module")
def strategy():
    return millrace.Strategy(devices=1)


def build(strategy=None, **options):
    keras.utils.set_random_seed(0)
    with contextlib.nullcontext() if strategy is None else strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)], name="net")
    model.compile("sgd", "mse", **options)
    return model


REFUSED = {
    "epochs as text": ("fit", {"epochs": "3"}, ["epochs must be", "'3' of type str", "epochs=3"]),
    "epochs a float": ("fit", {"epochs": 2.0}, ["2.0 of type float. Set epochs=2."]),
    "epochs None": ("fit", {"epochs": None}, ["epochs must be a whole number", "None"]),
    "first epoch as text": ("fit", {"initial_epoch": "1"}, ["Set initial_epoch=1."]),
    "steps negative": ("fit", {"steps_per_epoch": -1}, ["Received: -1", "steps_per_epoch=None"]),
    "steps half": ("fit", {"steps_per_epoch": 2.5}, ["steps_per_epoch must be", "2.5"]),
    "steps as text": ("fit", {"steps_per_epoch": "2"}, ["Set steps_per_epoch=2."]),
    "steps of evaluate": ("evaluate", {"steps": -1}, ["steps must be at least 1. Received: -1"]),
    "steps of predict": ("predict", {"steps": "1"}, ["'1' of type str. Set steps=1."]),
    "split of all": ("fit", {"validation_split": 1.0}, ["below 1", "Received: 1.0"]),
    "split above all": ("fit", {"validation_split": 2}, ["above 0 and below 1", "Received: 2"]),
    "split in percent": ("fit", {"validation_split": 20}, ["Set validation_split=0.2."]),
    "split negative": ("fit", {"validation_split": -0.1}, ["Received: -0.1", "share of the rows"]),
    "split as text": ("fit", {"validation_split": "0.1"}, ["'0.1'", "Set validation_split=0.2."]),
    "validation steps": ("fit", {**VALIDATION, "validation_steps": "1"}, ["validation_steps=1."]),
    "validation batch": (
        "fit",
        {**VALIDATION, "validation_batch_size": "8"},
        ["'8' of type str. Set validation_batch_size=8."],
    ),
    "validation never": ("fit", {**VALIDATION, "validation_freq": 0}, ["Received: 0 of type int"]),
    "validation half": ("fit", {**VALIDATION, "validation_freq": 1.5}, ["1.5 of type float"]),
    "class weights a list": (
        "fit",
        {"class_weight": [1, 5]},
        ["must be a dict", "[1, 5] of type list", "dict(enumerate(weights))"],
    ),
    "callback a class": (
        "fit",
        {"callbacks": [STOPPING]},
        ["the class EarlyStopping", "callbacks=[EarlyStopping(...)]"],
    ),
    "callbacks a class": ("fit", {"callbacks": STOPPING}, ["the class EarlyStopping"]),
    "callback a function": ("fit", {"callbacks": [print]}, ["LambdaCallback(on_epoch_end="]),
    "callback a name": ("fit", {"callbacks": "early"}, ["'early' of type str", "EarlyStopping("]),
    "callback None": ("predict", {"callbacks": [None]}, ["None of type NoneType"]),
    "argument misspelled": ("fit", {"epoch": 3}, ["fit() has no option 'epoch'", "mean epochs?"]),
    "argument of another loop": (
        "predict",
        {"steps_per_epoch": 3},
        ["predict() has no option 'steps_per_epoch'", "It has: x, batch_size, verbose, steps"],
    ),
}


@pytest.mark.parametrize("mistake", REFUSED)
def test_refused_before_anything_runs(strategy, mistake):
    call, options, fragments = REFUSED[mistake]
    model, compiled = build(strategy), len(strategy.compile_log)
    data = (X,) if call == "predict" else (X, Y)
    with pytest.raises(OptionError) as caught:
        getattr(model, call)(*data, **{"verbose": 0, **options})
    message = str(caught.value)
    assert [part for part in fragments if part not in message] == [], message
    assert len(strategy.compile_log) == compiled


@pytest.mark.parametrize("mistake", ["epochs as text", "callback a class", "argument misspelled"])
def test_refused_for_a_model_that_is_not_compiled(strategy, mistake):
    call, options, fragments = REFUSED[mistake]
    model = build(strategy, run_eagerly=True)
    with pytest.raises(OptionError, match=fragments[0].partition("(")[0]):
        getattr(model, call)(X, Y, **options)


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.parametrize(
    "options",
    [
        {"epochs": -1},
        {"epochs": 2, "initial_epoch": 5},
        {"epochs": np.int64(2), "initial_epoch": np.int32(1), "steps_per_epoch": 0},
        {**VALIDATION, "validation_steps": -1, "validation_split": 7},
        {"validation_split": None, "validation_freq": 0, "callbacks": ()},
        {"callbacks": keras.callbacks.LambdaCallback(), "validation_steps": "1"},
    ],
)
def test_what_keras_takes_is_as_in_keras(strategy, options):
    histories = [
        model.fit(X, Y, verbose=0, **options).history for model in (build(), build(strategy))
    ]
    assert histories[0].keys() == histories[1].keys()
    for name, values in histories[0].items():
        np.testing.assert_allclose(histories[1][name], values, rtol=1e-6)


class OfPairs(keras.Sequential):
    """Has loops with other arguments than Keras's."""

    def fit(self, pair, **options):
        return super().fit(*pair, verbose=0, **options)

    def predict(self, data):
        return super().predict(data, verbose=0)

    def train_on_batch(self, pair):
        return super().train_on_batch(*pair)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_loops_of_the_users_own_take_what_they_take(strategy, asynchronous):
    with strategy.scope():
        model = OfPairs([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.set_asynchronous_callbacks(asynchronous)
    assert len(model.fit((X, Y), epochs=2).history["loss"]) == 2
    assert model.predict(X).shape == (8, 1)
    assert np.isfinite(model.train_on_batch(pair=(X, Y)))
    with pytest.raises(OptionError, match=r"predict\(\) has no option 'steps'. It has: data."):
        model.predict(X, steps=1)
