"""Arguments of fit, evaluate and predict are taken or refused as by plain Keras."""

import contextlib

import keras
import numpy as np
import pytest

import millrace
from millrace.errors import MillraceError

X, Y = np.ones((8, 3), "float32"), np.ones((8, 1), "float32")
VALIDATION = {"validation_data": (X, Y)}


@pytest.fixture(scope="module")
def strategy():
    return millrace.Strategy(devices=1)


def build(strategy=None, **options):
    keras.utils.set_random_seed(0)
    with contextlib.nullcontext() if strategy is None else strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)], name="net")
    model.compile("sgd", "mse", **options)
    return model


TEXT = np.array(list("abcdefgh"))
MISTAKES = {
    "epochs as text": ("fit", {"epochs": "3"}),
    "epochs None": ("fit", {"epochs": None}),
    "steps half": ("fit", {"batch_size": 2, "steps_per_epoch": 2.5}),
    "steps as text": ("fit", {"steps_per_epoch": "2"}),
    "steps of predict": ("predict", {"steps": "1"}),
    "split of all": ("fit", {"validation_split": 1.0}),
    "split as text": ("fit", {"validation_split": "0.1"}),
    "class weights a list": ("fit", {"class_weight": [1, 5]}),
    "callback a class": ("fit", {"callbacks": [keras.callbacks.EarlyStopping]}),
    "callback a name": ("fit", {"callbacks": "early"}),
    "argument misspelled": ("fit", {"epoch": 3}),
    "argument of another loop": ("predict", {"steps_per_epoch": 3}),
    "no data": ("fit", {"x": None}),
    "no rows": ("fit", {"x": X[:0], "y": Y[:0]}),
    "no targets": ("fit", {"y": None}),
    "text": ("fit", {"x": TEXT}),
    "text as targets": ("evaluate", {"y": TEXT}),
    "rows of different lengths": ("fit", {"x": np.array([[1], [1, 2]], object), "y": Y[:2]}),
    "a number": ("predict", {"x": 3}),
    "a path": ("fit", {"x": "data.csv"}),
    "other numbers of rows": ("fit", {"validation_data": (X, Y[:3])}),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_what_keras_refuses_is_refused_and_the_model_can_be_trained(strategy, mistake):
    call, options = MISTAKES[mistake]
    data = {"x": X} if call == "predict" else {"x": X, "y": Y}
    with pytest.raises(Exception) as of_keras:  # noqa: PT011 - of any class
        getattr(build(), call)(**{**data, "verbose": 0, **options})
    model = build(strategy)
    with pytest.raises((type(of_keras.value), MillraceError)):
        getattr(model, call)(**{**data, "verbose": 0, **options})
    assert model.fit(X, Y, verbose=0).history["loss"][0] >= 0


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.parametrize(
    "options",
    [
        {"epochs": -1},
        {"batch_size": 0},
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
    with pytest.raises(TypeError, match="unexpected keyword argument 'steps'"):
        model.predict(X, steps=1)
