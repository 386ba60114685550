"""Sample weights fit the losses that they weigh, or are refused before anything runs."""

import contextlib

import keras
import numpy as np
import pytest

from millrace.errors import DataError

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


@pytest.mark.parametrize("call", ["fit", "evaluate"])
@pytest.mark.parametrize("inputs", [(3,), None])
@pytest.mark.parametrize("shape", [(8, 2), (8, 2, 3)])
def test_weights_of_single_values(strategy, inputs, shape, call):
    model = build(strategy, 2, "mse", inputs)
    with pytest.raises(DataError, match=r"sample_weight has the shape .*of shape \(8,\)") as caught:
        getattr(model, call)(X, ones(8, 2), sample_weight=ones(*shape))
    assert str(shape) in str(caught.value)
    assert strategy.compile_log == ()


def test_weights_of_validation_data(strategy):
    model = build(strategy, 2, "mse", (3,))
    y = ones(8, 2)
    with pytest.raises(DataError, match=r"sample_weight of validation_data has the shape \(8, 2\)"):
        model.fit(X, y, validation_data=(X, y, ones(8, 2)))


def test_weights_of_steps_and_values(strategy):
    model = build(strategy, 4, "sparse_categorical_crossentropy", (3, 2))
    with pytest.raises(DataError, match=r"along the first 2 axes of y: an array of shape \(8, 3\)"):
        model.fit(STEPS, CLASSES, sample_weight=ones(8, 3, 4))


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
