"""Batches in parts: losses, metrics and weights are those of plain Keras with the whole batch.

Each subject trains in plain Keras and under a strategy with `micro_batch`, from the same weights,
on the same arguments of `fit`.
"""

from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers, ops

import millrace
from millrace.errors import OptionError, PlanError, TapError

RNG = np.random.default_rng(0)
X = RNG.normal(size=(72, 6)).astype("float32")
Y = RNG.normal(size=(72, 2)).astype("float32")
CLASSES = RNG.integers(0, 3, size=72)
WEIGHTS = RNG.uniform(0.1, 3, size=72).astype("float32")
WORD_WEIGHTS = RNG.uniform(0.1, 3, size=(72, 7)).astype("float32")
WORDS = RNG.integers(1, 20, size=(72, 7)) * (np.arange(7) < RNG.integers(1, 8, size=(72, 1)))
IMAGES = RNG.normal(size=(72, 8, 8, 2)).astype("float32")


@dataclass
class Subject:
    """A model and its training."""

    build: Any
    data: Any  # the arguments of fit that are data
    loss: Any = "mse"
    optimizer: Any = "sgd"
    compile: dict = field(default_factory=dict)
    fit: dict = field(default_factory=dict)
    budget: float | None = None


def dense(outputs=2, **kwargs):
    return keras.Sequential(
        [keras.Input((6,)), layers.Dense(9, activation="tanh", **kwargs), layers.Dense(outputs)]
    )


def conv():
    return keras.Sequential(
        [
            keras.Input((8, 8, 2)),
            layers.Conv2D(4, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(3),
        ]
    )


def transformer():
    words = keras.Input((7,), dtype="int32")
    x = layers.Embedding(20, 8, mask_zero=True)(words)
    x = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 4)(x, x))
    return keras.Model(words, layers.Dense(20)(x))


def words():
    return keras.Sequential(
        [keras.Input((7,)), layers.Embedding(20, 8, mask_zero=True), layers.Dense(20)]
    )


def lstm():
    words = keras.Input((7,), dtype="int32")
    x = layers.Embedding(20, 8, mask_zero=True)(words)
    x = layers.LSTM(6, return_sequences=True)(x)
    return keras.Model(words, layers.Dense(1)(layers.LSTM(5)(x)))


def several():
    a, words = keras.Input((6,), name="a"), keras.Input((7,), name="words", dtype="int32")
    tokens = layers.Embedding(20, 8, mask_zero=True)(words)
    both = layers.Concatenate()([layers.Dense(5)(a), layers.GlobalAveragePooling1D()(tokens)])
    outputs = {
        "number": layers.Dense(2, name="number")(both),
        "kind": layers.Dense(3, name="kind")(both),
        "tokens": layers.Dense(20, name="tokens")(tokens),
    }
    return keras.Model({"a": a, "words": words}, outputs)


class WithAddLoss(keras.Model):
    def __init__(self):
        super().__init__()
        self.a, self.b = layers.Dense(5, activity_regularizer="l2"), layers.Dense(2)

    def call(self, x):
        hidden = self.a(x)
        self.add_loss(0.1 * ops.mean(ops.square(hidden)))
        return self.b(hidden)


class OwnLoss(keras.losses.Loss):
    def call(self, y_true, y_pred):
        return ops.mean(ops.abs(y_true - y_pred) ** 1.5, axis=-1)


class WithComputeLoss(keras.Model):
    def __init__(self):
        super().__init__()
        self.inner = dense()
        self.sums = keras.losses.MeanSquaredError(reduction="sum")

    def call(self, x):
        return self.inner(x)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return ops.mean(ops.square(y - y_pred)) + 0.01 * self.sums(y, y_pred)


def crossentropy(**kwargs):
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True, **kwargs)


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 3

    def __getitem__(self, k):
        rows = slice(24 * k, 24 * k + 24)
        return X[rows], Y[rows], WEIGHTS[rows]


ACCURACY = {"metrics": ["accuracy"], "weighted_metrics": ["accuracy"]}
SUBJECTS = {
    "dense": Subject(dense, {"x": X, "y": Y}, compile={"metrics": ["mae"]}),
    "masked": Subject(words, {"x": WORDS, "y": WORDS}, crossentropy),
    "sum": Subject(
        dense,
        {"x": X, "y": Y},
        lambda: keras.losses.MeanSquaredError(reduction="sum"),
        lambda: keras.optimizers.SGD(1e-4),
    ),
}
SLOW_SUBJECTS = {
    "masked": Subject(transformer, {"x": WORDS, "y": WORDS}, crossentropy, compile=ACCURACY),
    "conv": Subject(conv, {"x": IMAGES, "y": CLASSES}, crossentropy, compile=ACCURACY),
    "lstm": Subject(lstm, {"x": WORDS, "y": Y[:, :1]}),
    "masked and weighted": Subject(
        transformer,
        {"x": WORDS, "y": WORDS, "sample_weight": WORD_WEIGHTS},
        lambda: crossentropy(reduction="mean_with_sample_weight"),
        compile=ACCURACY,
    ),
    "ignored class": Subject(
        transformer, {"x": WORDS, "y": WORDS % 5}, lambda: crossentropy(ignore_class=2)
    ),
    "several": Subject(
        several,
        {
            "x": {"a": X, "words": WORDS},
            "y": {"number": Y, "kind": CLASSES, "tokens": WORDS},
            "sample_weight": {"number": WEIGHTS, "kind": WEIGHTS[::-1], "tokens": WORD_WEIGHTS},
        },
        lambda: {
            "number": "mse",
            "kind": crossentropy(reduction="mean_with_sample_weight"),
            "tokens": crossentropy(),
        },
        compile={
            "loss_weights": {"number": 0.3, "kind": 1.5, "tokens": 1.0},
            "metrics": {"kind": ["accuracy"], "number": ["mae"]},
        },
    ),
    "sample weights": Subject(
        dense, {"x": X, "y": Y, "sample_weight": WEIGHTS}, compile={"weighted_metrics": ["mae"]}
    ),
    "weighted mean": Subject(
        dense,
        {"x": X, "y": Y, "sample_weight": WEIGHTS},
        lambda: keras.losses.MeanAbsoluteError(reduction="mean_with_sample_weight"),
    ),
    "class weights": Subject(
        lambda: dense(3),
        {"x": X, "y": CLASSES},
        crossentropy,
        fit={"class_weight": {0: 0.5, 1: 2.0, 2: 1.0}},
    ),
    "data set": Subject(dense, {"x": Batches()}, fit={"batch_size": None}),
    "regularizers": Subject(
        lambda: dense(kernel_regularizer="l2", bias_regularizer="l1"), {"x": X, "y": Y}
    ),
    "add_loss": Subject(WithAddLoss, {"x": X, "y": Y}),
    "own loss": Subject(dense, {"x": X, "y": Y}, OwnLoss),
    "function": Subject(dense, {"x": X, "y": Y}, lambda: lambda y, p: ops.mean((y - p) ** 4, -1)),
    "compute_loss": Subject(WithComputeLoss, {"x": X, "y": Y}, lambda: None),
    "clipnorm": Subject(
        dense, {"x": X, "y": Y}, optimizer=lambda: keras.optimizers.Adam(clipnorm=0.1)
    ),
    "schedule and average": Subject(
        dense,
        {"x": X, "y": Y},
        optimizer=lambda: keras.optimizers.SGD(
            keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.7),
            global_clipnorm=0.5,
            use_ema=True,
            ema_overwrite_frequency=2,
            weight_decay=0.01,
        ),
    ),
    "validation": Subject(
        dense,
        {"x": X, "y": Y},
        fit={
            "validation_data": (X[:30], Y[:30]),
            "epochs": 6,
            "callbacks": lambda: [keras.callbacks.EarlyStopping(patience=1, min_delta=0.02)],
        },
    ),
    "several steps in an execution": Subject(
        dense, {"x": X, "y": Y}, compile={"steps_per_execution": 3}
    ),
    "keras accumulates": Subject(
        dense,
        {"x": X, "y": Y},
        optimizer=lambda: keras.optimizers.SGD(0.1, gradient_accumulation_steps=2),
    ),
    "ragged end": Subject(
        transformer, {"x": WORDS, "y": WORDS}, crossentropy, fit={"batch_size": 31}
    ),
}


def made(value):
    return value() if callable(value) else value


def train(subject, micro_batch=None, accumulation=1, devices=1, **fit):
    keras.utils.set_random_seed(3)
    if micro_batch is None:
        model = subject.build()
    else:
        with millrace.Strategy(devices=devices).scope():
            model = subject.build()
    if micro_batch is not None:
        model.set_gradient_accumulation_options(
            micro_batch=micro_batch, gradient_accumulation_steps_per_replica=accumulation
        )
        if subject.budget is not None:
            model.set_recomputation_options(budget=subject.budget)
    compiled = {"steps_per_execution": accumulation, **subject.compile}
    model.compile(made(subject.optimizer), made(subject.loss), **compiled)
    arguments = {"batch_size": 24, "epochs": 2, "shuffle": False, **subject.fit, **fit}
    arguments = {k: made(v) if k == "callbacks" else v for k, v in arguments.items()}
    history = model.fit(**subject.data, **arguments, verbose=0).history
    return model, history


def assert_same(found, expected):
    (model, history), (other, plain) = found, expected
    assert list(history) == list(plain)
    for name, values in plain.items():
        np.testing.assert_allclose(history[name], values, rtol=1e-6, atol=1e-6, err_msg=name)
    for value, other_value, variable in zip(
        model.get_weights(), other.get_weights(), model.weights, strict=True
    ):
        np.testing.assert_allclose(value, other_value, rtol=1e-6, atol=1e-6, err_msg=variable.path)


@pytest.mark.parametrize("name", SUBJECTS)
def test_a_batch_in_parts_trains_as_the_whole_batch(name):
    subject = SUBJECTS[name]
    assert_same(train(subject, 7), train(subject))


@pytest.mark.slow
@pytest.mark.parametrize("micro_batch", [8, 7])
@pytest.mark.parametrize("name", SLOW_SUBJECTS)
def test_a_batch_in_parts_trains_as_the_whole_batch_for_any_model(name, micro_batch):
    subject = SLOW_SUBJECTS[name]
    assert_same(train(subject, micro_batch), train(subject))


@pytest.mark.slow
@pytest.mark.parametrize("micro_batch", [8, 7])
def test_parts_within_an_accumulation(micro_batch):
    subject = Subject(transformer, {"x": WORDS, "y": WORDS}, crossentropy)
    other = Subject(
        transformer,
        {"x": WORDS, "y": WORDS},
        crossentropy,
        lambda: keras.optimizers.SGD(0.01, gradient_accumulation_steps=2),
        fit={"batch_size": 18},
    )
    assert_same(train(subject, micro_batch, 2, batch_size=18), train(other))


@pytest.mark.parametrize("devices", [2])
def test_replicas_compute_in_parts_as_without(devices):
    def noisy():
        return keras.Sequential(
            [keras.Input((6,)), layers.Dense(8), layers.GaussianNoise(0.0), layers.Dense(2)]
        )

    subject = Subject(noisy, {"x": X, "y": Y}, fit={"batch_size": 18})
    whole = train(subject, "whole", devices=devices)
    model, history = train(subject, 5, devices=devices)
    np.testing.assert_allclose(history["loss"], whole[1]["loss"], rtol=1e-6)
    for value, other in zip(model.get_weights(), whole[0].get_weights(), strict=True):
        if value.dtype == np.float32:  # the others count the parts
            np.testing.assert_allclose(value, other, rtol=1e-6, atol=1e-6)


def seeds_of(model):
    return [int(v.value[1]) for v in model.non_trainable_variables if "seed" in v.path]


@pytest.mark.parametrize("devices", [1, 2])
def test_each_part_draws_its_own_dropout_mask(devices):
    def build():
        return keras.Sequential([keras.Input((6,)), layers.Dropout(0.5), layers.Dense(2)])

    subject = Subject(build, {"x": X, "y": Y}, fit={"batch_size": 18, "epochs": 1})
    model, _ = train(subject, 6, devices=devices)
    plain, _ = train(subject)
    assert seeds_of(plain) == [4]
    assert seeds_of(model) == [12]  # 4 batches of 3 parts, in which no mask occurs twice


@pytest.mark.slow
def test_loss_scaling_of_mixed_precision():
    keras.config.set_dtype_policy("mixed_float16")
    try:
        subject = Subject(
            dense, {"x": X, "y": Y}, optimizer=lambda: keras.optimizers.LossScaleOptimizer(
                keras.optimizers.SGD(0.01), initial_scale=256.0)
        )  # fmt: skip
        (model, history), (plain, expected) = train(subject, 8), train(subject)
    finally:
        keras.config.set_dtype_policy("float32")
    np.testing.assert_allclose(history["loss"], expected["loss"], rtol=1e-3)  # float16's
    for value, other in zip(model.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(value, other, rtol=1e-3, atol=1e-3)
    assert float(model.optimizer.dynamic_scale.value) == 256.0
    assert int(model.optimizer.iterations) == int(plain.optimizer.iterations)


@pytest.mark.slow
def test_batch_normalization_has_statistics_of_parts():
    def build():
        return keras.Sequential([keras.Input((6,)), layers.BatchNormalization(), layers.Dense(2)])

    subject = Subject(build, {"x": X, "y": Y}, fit={"epochs": 1, "batch_size": 72})
    model, _ = train(subject, 36)
    momentum, mean = 0.99, np.zeros(6)
    for part in (X[:36], X[36:]):
        mean = mean * momentum + part.mean(axis=0) * (1 - momentum)
    np.testing.assert_allclose(model.layers[0].moving_mean.numpy(), mean, rtol=1e-5, atol=1e-7)


def test_a_gradient_that_is_not_finite_stops_before_its_update():
    x = X.copy()
    x[30, 0] = np.inf
    subject = Subject(dense, {"x": x, "y": Y})
    watch = millrace.callbacks.NaNWatch(directory=None)
    model, _ = train(subject, 8, callbacks=[watch], epochs=1)
    assert watch.found is not None
    assert int(model.optimizer.iterations) == 1
    assert np.isfinite(model.get_weights()[0]).all()


@pytest.mark.slow
def test_train_on_batch_evaluate_and_predict():
    subject = Subject(dense, {"x": X, "y": Y}, compile={"metrics": ["mae"]})
    (model, _), (plain, _) = train(subject, 7), train(subject)
    np.testing.assert_allclose(model.train_on_batch(X, Y), plain.train_on_batch(X, Y), rtol=1e-6)
    np.testing.assert_allclose(
        model.evaluate(X, Y, verbose=0), plain.evaluate(X, Y, verbose=0), rtol=1e-6
    )
    np.testing.assert_allclose(
        model.predict(X, verbose=0), plain.predict(X, verbose=0), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("value", [0, 2.5, "half", True])
def test_other_values_are_refused(value):
    with millrace.Strategy(devices=1).scope():
        model = dense()
    with pytest.raises(OptionError, match="micro_batch must be"):
        model.set_gradient_accumulation_options(micro_batch=value)


def test_taps_of_a_part_are_refused():
    queue = millrace.OutfeedQueue()
    subject = Subject(
        lambda: keras.Sequential(
            [keras.Input((6,)), layers.Dense(2), millrace.layers.Outfeed(queue)]
        ),
        {"x": X, "y": Y},
    )
    with pytest.raises(TapError, match="micro_batch='whole'"):
        train(subject, 8)


def test_an_array_without_rows_is_refused():
    def data():
        while True:
            yield X[:24], Y[:24], WEIGHTS[:1]

    subject = Subject(dense, {"x": data()}, fit={"steps_per_epoch": 2, "batch_size": None})
    with pytest.raises(PlanError, match=r"micro_batch=8 .* of 24 rows .* shape \(1,\)"):
        train(subject, 8)
