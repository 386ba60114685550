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
from millrace.errors import ModelError, OptionError, PlanError, TapError

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
    options: dict = field(default_factory=dict)
    policy: str = "float32"


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
    "masked": Subject(transformer, {"x": WORDS, "y": WORDS}, crossentropy, compile=ACCURACY),
    "sum": Subject(
        dense,
        {"x": X, "y": Y},
        lambda: keras.losses.MeanSquaredError(reduction="sum"),
        lambda: keras.optimizers.SGD(1e-4),
    ),
}
SLOW_SUBJECTS = {
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
    "recomputed": Subject(
        transformer, {"x": WORDS, "y": WORDS}, crossentropy, options={"recompute": 0.95}
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
        if "recompute" in subject.options:
            model.set_recomputation_options(budget=subject.options["recompute"])
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
