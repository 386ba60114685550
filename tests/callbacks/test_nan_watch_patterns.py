"""Patterns of NaNWatch that would watch nothing."""

import keras
import numpy as np
import pytest

import millrace
from millrace.errors import OptionError

X, Y = np.ones((8, 4), "float32"), np.ones((8, 1), "float32")


def make_model(strategy, **layer):
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((4,)), keras.layers.Dense(1, name="dense", **layer)], name="net"
        )
    model.compile("sgd", "mse")
    return model


@pytest.mark.parametrize(
    ("patterns", "message"),
    [
        (
            ["nope/*"],
            r"'nope/\*' matches no trainable variable of 'net'. The names are: dense/k",
        ),
        ("dens/kernel", r"Similar names are: dense/kernel"),
        (["dense/*", "dense/weight"], r"gradients='dense/weight' matches no trainable"),
    ],
)
def test_a_pattern_that_matches_nothing_is_refused_before_anything_is_compiled(
    strategy, patterns, message
):
    model = make_model(strategy)
    watch = millrace.callbacks.NaNWatch(gradients=patterns, directory=None)
    with pytest.raises(OptionError, match=message):
        model.fit(X, Y, verbose=0, callbacks=[watch])
    assert strategy.compile_log == ()


def test_all_gradients_of_a_model_without_any_are_no_mistake(strategy):
    model = make_model(strategy, trainable=False)
    model.fit(X, Y, verbose=0, callbacks=[millrace.callbacks.NaNWatch(directory=None)])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gradients": 3}, "gradients must be a pattern of names, such as 'dense.*Received: 3"),
        ({"gradients": None}, "Received: None"),
        ({"gradients": [1]}, r"Received: \[1\]"),
        ({"directory": 3}, "directory must be a path, or None for that of the run. Received: 3"),
    ],
)
def test_options_of_another_type(options, message):
    with pytest.raises(OptionError, match=message):
        millrace.callbacks.NaNWatch(**options)
