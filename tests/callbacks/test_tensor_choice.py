"""Patterns of names, and what is refused before anything is compiled."""

import keras
import numpy as np
import pytest
from keras import layers
from watching import built, column, data, fit, names, nested, watch

import millrace
from millrace.callbacks import TensorStatistics


def test_names_below_layers_and_models(strategy):
    statistics = watch("*", "*kernel")
    fit(strategy.attach(built(nested)), statistics)
    block = ["encoder/block/inner", "encoder/block/outer", "encoder/block"]
    assert names(statistics.history, "activation") == ["encoder/dense", *block, "head"]
    kernels = ["encoder/dense", *block[:2], "head"]
    assert names(statistics.history, "gradient") == [f"{name}/kernel" for name in kernels]


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("encoder/block/*", ["encoder/block/inner", "encoder/block/outer"]),
        ("block/inner", ["encoder/block/inner"]),
        (("inner", "head"), ["encoder/block/inner", "head"]),
        ("[dh]e*", ["encoder/dense", "head"]),
    ],
)
def test_a_pattern_matches_a_name_or_its_end(strategy, pattern, found):
    statistics = watch(pattern)
    fit(strategy.attach(built(nested)), statistics)
    assert names(statistics.history, "activation") == found


def test_a_subclassed_model_that_fit_builds(strategy):
    class Own(keras.Model):
        def __init__(self):
            super().__init__()
            self.first, self.last = layers.Dense(3, name="first"), layers.Dense(1, name="last")

        def call(self, x):
            return self.last(self.first(x))

    statistics = watch("*", "last/kernel")
    fit(strategy.attach(built(Own)), statistics)
    assert names(statistics.history, "activation") == ["first", "last"]
    assert names(statistics.history, "gradient") == ["last/kernel"]


def test_two_watch_different_tensors(strategy):
    model = strategy.attach(built(steps_per_execution=6))
    fit(model)  # so that updates are counted from 6
    some = watch("out", "out/bias", every=4)
    others = watch("hidden", "out/*", "after_compute", every=3)
    x, y = data()
    model.fit(x, y, batch_size=4, shuffle=False, verbose=0, callbacks=[some, others])
    assert names(some.history, "activation") == ["out"]
    assert names(some.history, "gradient") == ["out/bias"]
    assert column(some.history, "step") == [2, 2]
    assert names(others.history, "gradient") == ["out/kernel", "out/bias"]
    assert column(others.history, "step", "activation") == [0, 3]


def test_a_warning_names_what_is_out_of_sight(strategy):
    def make():
        cell = layers.SimpleRNNCell(2, name="cell")
        return keras.Sequential([keras.Input((5, 1)), layers.RNN(cell, name="rnn")])

    statistics = watch(("rnn", "cell"))
    x, y = data(2, (5, 1), 2)
    with pytest.warns(UserWarning, match=r"no tensors of \['cell'\].*name the enclosing layer"):
        fit(strategy.attach(built(make)), statistics, (x, y), epochs=2)
    assert names(statistics.history, "activation") == ["rnn"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"looks at no tensor: activations=\(\) and gradients=\(\). Set activations='\*'"),
        ({"activations": 3}, "activations must be a pattern of names.*or several. Received: 3"),
        ({"gradients": ["a", None]}, r"gradients must be a pattern.*Received: \['a', None\]"),
        ({"activations": "*", "when": "later"}, r"when must be one of \['after_compute', 'before"),
        ({"activations": "*", "every": 0}, "every must be at least 1. Received: 0"),
        ({"activations": "*", "max_rows": 0}, "max_rows must be at least 1"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(millrace.errors.OptionError, match=message):
        TensorStatistics(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"activations": "encoder/dens"},
            "activations='encoder/dens' matches no layer of 'functional.*'. Similar names are: "
            "encoder/dense.*match the whole name or its end",
        ),
        ({"activations": "encoder"}, "no layer.*encoder/dense"),  # a model is no layer of its own
        ({"activations": "Q"}, "The names are: encoder/dense, encoder/block, encoder/block/inner"),
        (
            {"gradients": ["*", "head/kernl"]},
            "gradients='head/kernl'.*no trainable variable.*head/k",
        ),
    ],
)
def test_patterns_that_match_nothing(strategy, compiled_texts, options, message):
    model = strategy.attach(built(nested))
    with pytest.raises(millrace.errors.OptionError, match=message):
        fit(model, watch(**options))
    assert not compiled_texts
    fit(model)


def test_a_model_of_no_strategy():
    with pytest.raises(
        millrace.errors.ModelError, match=r"belongs to no strategy. Call strategy.attach"
    ):
        fit(built(), watch("*"))


def test_a_train_step_of_the_users_own(strategy):
    class Own(keras.Sequential):
        def train_step(self, state, data):
            return super().train_step(state, data)

    def seen(kind):
        keras.utils.set_random_seed(0)
        statistics = watch("*")
        fit(
            strategy.attach(built(lambda: kind([keras.Input((5,)), layers.Dense(1, name="only")]))),
            statistics,
        )
        return statistics.history

    found, expected = seen(Own), seen(keras.Sequential)
    assert list(found) == list(expected)
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values)
