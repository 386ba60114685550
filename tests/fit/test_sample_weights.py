"""Sample weights of each form that Keras takes."""

import contextlib

import keras
import numpy as np
import pytest

X = np.random.default_rng(0).normal(size=(8, 3)).astype("float32")
STEPS = np.random.default_rng(1).normal(size=(8, 3, 2)).astype("float32")
CLASSES = np.arange(24).reshape(8, 3) % 4


def ones(*shape):
    return np.linspace(0.5, 2, int(np.prod(shape)), dtype="float32").reshape(shape)


def build(strategy, units, loss, inputs=None):
    keras.utils.set_random_seed(0)
    first = [] if inputs is None else [keras.Input(inputs)]
    with contextlib.nullcontext() if strategy is None else strategy.scope():
        model = keras.Sequential([*first, keras.layers.Dense(units)])
    model.compile("sgd", loss, weighted_metrics=[])
    return model


def elementwise(y, prediction):
    return (y - prediction) ** 2


LOGITS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@pytest.mark.parametrize(
    ("x", "y", "units", "loss", "shape"),
    [
        (X, ones(8, 1), 1, "mse", (8, 1)),
        (STEPS, CLASSES, 4, LOGITS, (8, 3)),
        (X, ones(8, 2), 2, elementwise, (8, 2)),
    ],
    ids=["a column", "steps of class numbers", "a loss of the user's own"],
)
def test_weights_that_fit_are_as_in_keras(strategy, x, y, units, loss, shape):
    histories = [
        build(owner, units, loss, x.shape[1:]).fit(x, y, sample_weight=ones(*shape), verbose=0)
        for owner in (None, strategy)
    ]
    keras_loss, own_loss = (history.history["loss"] for history in histories)
    np.testing.assert_allclose(own_loss, keras_loss, rtol=1e-6)
