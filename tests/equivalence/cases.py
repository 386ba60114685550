"""One table: models and options with which millrace must train as plain Keras does.

    Case             model, data, arguments of compile and fit
    MODELS           every kind of model, with the same plain training
    OPTIONS          every option of compile and fit, on a small model
    train(case)      -> Outcome of plain Keras
    train(case, strategy, steps_per_execution)      -> Outcome of millrace

Both start from the same seeds. Plain Keras always runs one step per execution: the number of steps
in an execution changes no result.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import keras
import numpy as np
from keras import layers

BATCH_SIZE = 4
WHOLE = 20  # rows: five batches
RAGGED = 22  # rows: five batches, and one of 2 rows, for which everything is compiled once more
EPOCHS = 2


@dataclass(frozen=True)
class Tolerance:
    """How far results of the same arithmetic, compiled into different programs, may be apart."""

    rtol: float
    atol: float


# XLA fuses, and so rounds, the same step differently inside a loop: a few units in the last place
# of float32 (1.2e-7), over a dozen updates.
FLOAT32 = Tolerance(rtol=1e-6, atol=1e-6)
# Units in the last place of bfloat16 are 2**-8, of float16 2**-11. XLA keeps intermediate results
# of what it fuses in float32, so a different fusion moves an activation by one such unit; weights
# are float32 and move by that times the learning rate.
BFLOAT16 = Tolerance(rtol=2**-7, atol=2**-9)
FLOAT16 = Tolerance(rtol=2**-10, atol=2**-12)


def table(rows: int = WHOLE, classes: int = 2) -> dict[str, Any]:
    """Rows of six numbers, with a class each."""
    random = np.random.default_rng(3)
    x = random.normal(size=(rows, 6)).astype("float32")
    y = (x.sum(axis=1, keepdims=True) > 0).astype("float32")
    if classes > 2:
        y = random.integers(0, classes, size=(rows,)).astype("int32")
    return {"x": x, "y": y}


def images(rows: int = WHOLE) -> dict[str, Any]:
    random = np.random.default_rng(4)
    x = random.normal(size=(rows, 6, 6, 1)).astype("float32")
    return {"x": x, "y": random.integers(0, 3, size=(rows,)).astype("int32")}


def sequences(rows: int = WHOLE) -> dict[str, Any]:
    random = np.random.default_rng(5)
    x = random.normal(size=(rows, 5, 3)).astype("float32")
    return {"x": x, "y": random.normal(size=(rows, 2)).astype("float32")}


def words(rows: int = WHOLE) -> dict[str, Any]:
    """Numbers of words, padded with zeros to length 6."""
    random = np.random.default_rng(6)
    x = random.integers(1, 11, size=(rows, 6))
    x[np.arange(6) >= random.integers(2, 7, size=(rows, 1))] = 0
    return {"x": x.astype("int32"), "y": random.integers(0, 2, size=(rows, 1)).astype("float32")}


def named(rows: int = WHOLE) -> dict[str, Any]:
    random = np.random.default_rng(7)
    x = {
        "left": random.normal(size=(rows, 4)).astype("float32"),
        "right": random.normal(size=(rows, 3)).astype("float32"),
    }
    y = {
        "amount": random.normal(size=(rows, 1)).astype("float32"),
        "kind": random.integers(0, 3, size=(rows,)).astype("int32"),
    }
    return {"x": x, "y": y}


def deferred() -> keras.Model:
    return keras.Sequential([layers.Dense(8, "relu"), layers.Dense(1, "sigmoid")])


def mlp() -> keras.Model:
    return keras.Sequential(
        [keras.Input((6,)), layers.Dense(8, "relu"), layers.Dense(1, "sigmoid")]
    )


def normalized() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(8, use_bias=False),  # whose gradient would be rounding alone
            layers.BatchNormalization(momentum=0.8),
            layers.Activation("relu"),
            layers.Dropout(0.3),
            layers.Dense(1, "sigmoid"),
        ]
    )


def noisy() -> keras.Model:
    """Three seed generators."""
    return keras.Sequential(
        [
            keras.Input((6,)),
            layers.GaussianNoise(0.1),
            layers.Dense(8, "tanh"),
            layers.Dropout(0.2, seed=11),
            layers.Dropout(0.2),
            layers.Dense(1, "sigmoid"),
        ]
    )


def named_functional() -> keras.Model:
    left, right = keras.Input((4,), name="left"), keras.Input((3,), name="right")
    both = layers.concatenate([layers.Dense(4, "relu")(left), layers.Dense(4, "tanh")(right)])
    outputs = {
        "amount": layers.Dense(1, name="amount")(both),
        "kind": layers.Dense(3, "softmax", name="kind")(both),
    }
    return keras.Model({"left": left, "right": right}, outputs)


def nested() -> keras.Model:
    inner_input = keras.Input((5,))
    hidden = layers.BatchNormalization()(layers.Dense(5, "relu")(inner_input))
    inner = keras.Model(inner_input, hidden, name="inner")
    outer_input = keras.Input((6,))
    hidden = inner(layers.Dense(5)(outer_input))
    head = keras.Sequential([layers.Dense(4, "relu"), layers.Dense(1, "sigmoid")], name="head")
    return keras.Model(outer_input, head(inner(hidden)))


def shared() -> keras.Model:
    """One layer that is called three times."""
    layer = layers.Dense(6, "tanh")
    inputs = keras.Input((6,))
    hidden = layer(layer(inputs)) + layer(inputs * 0.5)
    return keras.Model(inputs, layers.Dense(1, "sigmoid")(hidden))


class Subclassed(keras.Model):
    """Does something else in training than in evaluation."""

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        self.hidden = layers.Dense(8, "relu")
        self.dropout = layers.Dropout(0.3)
        self.head = layers.Dense(1, "sigmoid")
        self.calls = self.add_weight(shape=(), dtype="int32", initializer="zeros", trainable=False)

    def call(self, inputs: Any, training: bool = False) -> Any:
        hidden = self.hidden(inputs)
        if training:
            self.calls.assign_add(1)
            hidden = self.dropout(hidden, training=True) + 0.1
        return self.head(hidden)


def convnet() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((6, 6, 1)),
            layers.Conv2D(2, 3, activation="relu"),
            layers.BatchNormalization(momentum=0.8),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(3, "softmax"),
        ]
    )


def lstm() -> keras.Model:
    return keras.Sequential([keras.Input((5, 3)), layers.LSTM(4), layers.Dense(2)])


def stateful_lstm() -> keras.Model:
    """Carries its state from batch to batch."""
    return keras.Sequential(
        [keras.Input((5, 3), batch_size=4), layers.LSTM(4, stateful=True), layers.Dense(2)]
    )


def masked() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((6,), dtype="int32"),
            layers.Embedding(11, 4, mask_zero=True),
            layers.GRU(4, return_sequences=True),
            layers.GlobalAveragePooling1D(),
            layers.Dense(1, "sigmoid"),
        ]
    )


def attention() -> keras.Model:
    inputs = keras.Input((5, 3))
    hidden = layers.LayerNormalization()(layers.Dense(4)(inputs))
    hidden = hidden + layers.MultiHeadAttention(2, 2, dropout=0.1)(hidden, hidden)
    return keras.Model(inputs, layers.Dense(2)(layers.Flatten()(hidden)))


def regularized() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(8, "relu", kernel_regularizer="l2", activity_regularizer="l1"),
            layers.Dense(1, "sigmoid", kernel_constraint=keras.constraints.MaxNorm(0.9)),
        ]
    )


class AddsLoss(layers.Layer):
    def call(self, inputs: Any) -> Any:
        self.add_loss(0.05 * keras.ops.mean(keras.ops.square(inputs)))
        return inputs


def with_add_loss() -> keras.Model:
    hidden = [layers.Dense(8, "relu"), AddsLoss(), layers.Dense(1, "sigmoid")]
    return keras.Sequential([keras.Input((6,)), *hidden])


class OwnTrainStep(keras.Sequential):
    """The train step of Keras's guide for JAX, with gradients of twice the loss."""

    def train_step(self, state: Any, data: Any) -> Any:
        trainable, non_trainable, optimizer, metrics = state
        x, y = data

        def loss_of(trainable: Any, non_trainable: Any) -> Any:
            y_pred, non_trainable = self.stateless_call(trainable, non_trainable, x, training=True)
            return 2 * self.compute_loss(x, y, y_pred), (y_pred, non_trainable)

        (loss, (y_pred, non_trainable)), gradients = jax.value_and_grad(loss_of, has_aux=True)(
            trainable, non_trainable
        )
        trainable, optimizer = self.optimizer.stateless_apply(optimizer, gradients, trainable)
        logs = {"last_loss": loss, "largest": keras.ops.max(y_pred)}
        new_metrics = []
        for metric in self.metrics:
            values = metrics[len(new_metrics) : len(new_metrics) + len(metric.variables)]
            if metric.name == "loss":
                values = metric.stateless_update_state(values, loss)
            else:
                values = metric.stateless_update_state(values, y, y_pred)
            logs[metric.name] = metric.stateless_result(values)
            new_metrics += values
        return logs, (trainable, non_trainable, optimizer, new_metrics)


class OwnTestStep(keras.Sequential):
    def test_step(self, state: Any, data: Any) -> Any:
        logs, state = super().test_step(state, data)
        return {**logs, "double": 2 * logs["loss"]}, state


class OwnLoss(keras.Sequential):
    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Any:
        loss = super().compute_loss(x, y, y_pred, sample_weight, training)
        return loss + 0.1 * keras.ops.mean(keras.ops.abs(y_pred - 0.5))


class OwnMetrics(keras.Sequential):
    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        logs = super().compute_metrics(x, y, y_pred, sample_weight)
        return {**logs, "last_mean": keras.ops.mean(y_pred)}


def of(cls: type[keras.Model], dropout: float = 0.2) -> Callable[[], keras.Model]:
    """Builds the small model as another class."""

    def build() -> keras.Model:
        hidden = [layers.Dense(8, "relu"), layers.Dropout(dropout), layers.Dense(1, "sigmoid")]
        return cls([keras.Input((6,)), *hidden])

    return build


def binary(**changes: Any) -> Callable[[], dict[str, Any]]:
    """Arguments of compile; a change that can be called is called anew for every model."""

    def arguments() -> dict[str, Any]:
        made = {name: value() if callable(value) else value for name, value in changes.items()}
        return {"optimizer": "adam", "loss": "binary_crossentropy", "metrics": ["accuracy"], **made}

    return arguments


def optimizer(name: str, *args: Any, **kwargs: Any) -> Callable[[], dict[str, Any]]:
    return binary(optimizer=lambda: getattr(keras.optimizers, name)(*args, **kwargs))


def schedule(name: str, *args: Any, **kwargs: Any) -> Callable[[], dict[str, Any]]:
    def make() -> keras.optimizers.Optimizer:
        made = getattr(keras.optimizers.schedules, name)(*args, **kwargs)
        return keras.optimizers.SGD(made, momentum=0.9)

    return binary(optimizer=make)


def loss_scaled(**kwargs: Any) -> keras.optimizers.Optimizer:
    return keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(1e-2), **kwargs)


classifier = binary()


@dataclass(frozen=True)
class Case:
    """What is trained, how, and how near the results must be."""

    name: str
    build: Callable[[], keras.Model] = mlp
    data: Callable[..., dict[str, Any]] = table  # of a number of rows
    rows: int = WHOLE
    compile: Callable[[], dict[str, Any]] = classifier
    fit: Callable[[dict[str, Any]], dict[str, Any]] = lambda data: {}
    policy: str = "float32"
    tolerance: Tolerance = FLOAT32


def weights_of_rows(data: dict[str, Any]) -> np.ndarray:
    return np.linspace(0.1, 2.0, len(jax.tree.leaves(data["x"])[0])).astype("float32")


def first(data: dict[str, Any], rows: int) -> tuple[Any, ...]:
    """The first rows of x and y."""
    return tuple(jax.tree.map(lambda leaf: leaf[:rows], data[name]) for name in ("x", "y"))


def two_outputs(**changes: Any) -> Callable[[], dict[str, Any]]:
    return binary(
        loss={"amount": "mse", "kind": "sparse_categorical_crossentropy"},
        metrics=lambda: {"amount": ["mae"], "kind": ["accuracy"]},
        **changes,
    )


def ragged(*args: Any, **kwargs: Any) -> Case:
    """A case whose last batch is a smaller one."""
    return Case(*args, rows=RAGGED, **kwargs)


regression = binary(loss="mse", metrics=lambda: ["mae"])
regression_by_sgd = binary(
    loss="mse",
    metrics=lambda: ["mae"],
    optimizer=lambda: keras.optimizers.SGD(0.01, momentum=0.9),
)
three_classes = binary(loss="sparse_categorical_crossentropy")

MODELS = [
    ragged("deferred", deferred),
    Case("sequential", mlp),
    ragged("batchnorm-dropout", normalized),
    Case("seed-generators", noisy),
    ragged("dict-inputs-outputs", named_functional, named, compile=two_outputs()),
    Case("nested", nested),
    Case("shared-layer", shared),
    ragged("subclassed", Subclassed),
    ragged("convnet", convnet, images, compile=three_classes),
    Case("lstm", lstm, sequences, compile=regression),
    Case("stateful-lstm", stateful_lstm, sequences, compile=regression),
    ragged("masked-embedding", masked, words),
    Case("attention", attention, sequences, compile=regression),
    Case("regularizers-constraints", regularized),
    Case("add-loss", with_add_loss),
    Case("own-train-step", of(OwnTrainStep)),
    Case("own-test-step", of(OwnTestStep)),
    Case("own-compute-loss", of(OwnLoss)),
    ragged("own-compute-metrics", of(OwnMetrics)),
]

OPTIONS = [
    Case("shuffle-none", fit=lambda data: {"shuffle": False}),
    Case("shuffle-batch", fit=lambda data: {"shuffle": "batch"}),
    ragged("ragged-shuffled-batches", fit=lambda data: {"shuffle": "batch"}),
    Case("one-small-batch", rows=3),
    Case("sample-weight", fit=lambda data: {"sample_weight": weights_of_rows(data)}),
    Case("class-weight", fit=lambda data: {"class_weight": {0: 1.0, 1: 3.0}}),
    Case(
        "class-weight-integers",
        lambda: keras.Sequential([keras.Input((6,)), layers.Dense(3, "softmax")]),
        lambda rows: table(rows, classes=3),
        compile=three_classes,
        fit=lambda data: {"class_weight": {0: 0.5, 1: 3.0, 2: 1.0}},
    ),
    Case("validation-data", fit=lambda data: {"validation_data": first(data, 9)}),
    Case("validation-split", normalized, fit=lambda data: {"validation_split": 0.4}),
    Case(
        "validation-weights",
        fit=lambda data: {
            "validation_data": (*first(data, 8), weights_of_rows(data)[:8]),
            "validation_batch_size": 5,
        },
    ),
    Case(
        "validation-own-metrics",
        of(OwnMetrics),
        fit=lambda data: {"validation_data": first(data, 8)},
    ),
    Case(
        "stateful-metrics",
        compile=binary(metrics=lambda: [keras.metrics.AUC(name="auc"), "mae"]),
        fit=lambda data: {"validation_data": first(data, 8)},
    ),
    Case(
        "weighted-metrics",
        compile=binary(weighted_metrics=lambda: ["mae", keras.metrics.AUC(name="weighted_auc")]),
        fit=lambda data: {"sample_weight": weights_of_rows(data)},
    ),
    Case(
        "loss-weights",
        named_functional,
        named,
        compile=two_outputs(loss_weights={"amount": 0.3, "kind": 2.0}),
        fit=lambda data: {"validation_data": first(data, 8)},
    ),
    Case("no-metrics", compile=binary(metrics=None)),
    Case("sgd", compile=optimizer("SGD", 0.1)),
    Case("nesterov", compile=optimizer("SGD", 0.1, momentum=0.9, nesterov=True)),
    Case("rmsprop", compile=optimizer("RMSprop", momentum=0.5, centered=True)),
    Case("amsgrad", compile=optimizer("Adam", 1e-2, amsgrad=True)),
    Case("lion", compile=optimizer("Lion", 1e-3)),
    Case("nadam", compile=optimizer("Nadam", 1e-2)),
    Case("adamw", compile=optimizer("AdamW", 1e-2, weight_decay=0.1)),
    Case("ema", compile=optimizer("SGD", 0.1, use_ema=True, ema_momentum=0.8)),
    Case(
        "ema-overwrite",
        compile=optimizer("Adam", 1e-2, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=5),
    ),
    Case("clipnorm", compile=optimizer("SGD", 0.1, clipnorm=0.05)),
    Case("clipvalue", compile=optimizer("SGD", 0.1, clipvalue=0.01)),
    Case("global-clipnorm", compile=optimizer("Adam", 1e-2, global_clipnorm=0.05)),
    Case("loss-scale-factor", compile=optimizer("SGD", 0.1, loss_scale_factor=8.0)),
    Case("own-accumulation", compile=optimizer("Adam", 1e-2, gradient_accumulation_steps=4)),
    Case("exponential-decay", compile=schedule("ExponentialDecay", 0.1, 3, 0.5)),
    Case("staircase", compile=schedule("PiecewiseConstantDecay", [2, 7], [0.1, 0.05, 0.01])),
    Case("cosine", compile=schedule("CosineDecayRestarts", 0.1, 5)),
    Case("loss-scaling", compile=binary(optimizer=loss_scaled)),
    Case(
        "loss-scaling-grows",
        compile=binary(optimizer=lambda: loss_scaled(initial_scale=16.0, dynamic_growth_steps=3)),
    ),
    Case("bfloat16", policy="mixed_bfloat16", tolerance=BFLOAT16),
    Case("bfloat16-normalized", normalized, policy="mixed_bfloat16", tolerance=BFLOAT16),
    Case("float16", policy="mixed_float16", tolerance=FLOAT16),
    Case(
        # The first scale is too large for float16: steps are skipped until it has been halved.
        "float16-overflows",
        compile=binary(optimizer=lambda: loss_scaled(initial_scale=2.0**24)),
        policy="mixed_float16",
        tolerance=FLOAT16,
    ),
]


@dataclass(frozen=True)
class Outcome:
    """Everything that training leaves behind."""

    model: keras.Model
    history: dict[str, list[float]]
    epochs: list[int]
    variables: list[tuple[str, np.ndarray]]  # weights, statistics, seeds; the optimizer's; metrics


def compiled(
    case: Case, strategy: Any = None, steps_per_execution: int = 1, **changes: Any
) -> keras.Model:
    """The case's model: a stock one, or one that is attached to `strategy`."""
    keras.config.set_dtype_policy(case.policy)
    keras.utils.set_random_seed(1)
    with contextlib.nullcontext() if strategy is None else strategy.scope():
        model = case.build()
    model.compile(**{**case.compile(), "steps_per_execution": steps_per_execution, **changes})
    return model


def train(case: Case, strategy: Any = None, steps_per_execution: int = 1) -> Outcome:
    """Trains the case's model for two epochs."""
    return fit(case, compiled(case, strategy, steps_per_execution))


def fit(case: Case, model: keras.Model) -> Outcome:
    """Trains `model`, made by `compiled`, for two epochs."""
    data = case.data(case.rows)
    arguments = {"batch_size": BATCH_SIZE, "epochs": EPOCHS, **case.fit(data)}
    keras.utils.set_random_seed(2)
    return outcome(model, model.fit(**data, **arguments, verbose=0))


def outcome(model: keras.Model, history: keras.callbacks.History) -> Outcome:
    """What training left behind in `model`."""
    return Outcome(model, history.history, history.epoch, variables_of(model))


def variables_of(model: keras.Model) -> list[tuple[str, np.ndarray]]:
    """Copies of all variables: those of layers, seed generators, the optimizer and metrics."""
    kinds = {
        "model": model.variables,
        "optimizer": model.optimizer.variables,
        "metrics": model.metrics_variables,
    }
    return [
        (f"{kind} {variable.path}", np.array(variable.value))
        for kind, variables in kinds.items()
        for variable in variables
    ]


def assert_same(found: Outcome, expected: Outcome, tolerance: Tolerance = FLOAT32) -> None:
    """Asserts that two trainings left the same behind."""
    assert list(found.history) == list(expected.history)
    assert found.epochs == expected.epochs
    for name, values in expected.history.items():
        assert_close(found.history[name], values, tolerance, name)
    assert_same_variables(found.variables, expected.variables, tolerance)


def assert_same_variables(found: Any, expected: Any, tolerance: Tolerance = FLOAT32) -> None:
    """Asserts that lists of `variables_of` are the same: integers and seeds exactly."""
    assert len(found) == len(expected)
    for (_, value), (name, other) in zip(found, expected, strict=True):
        assert value.dtype == other.dtype, name
        if np.issubdtype(other.dtype, np.integer) or other.dtype == bool:
            np.testing.assert_array_equal(value, other, err_msg=name)
        else:
            assert_close(value, other, tolerance, name)


def assert_close(found: Any, expected: Any, tolerance: Tolerance = FLOAT32, name: str = "") -> None:
    """Asserts that leaves are within the tolerance."""
    assert jax.tree.structure(found) == jax.tree.structure(expected), name
    for value, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(
            np.asarray(value, np.float64),
            np.asarray(other, np.float64),
            rtol=tolerance.rtol,
            atol=tolerance.atol,
            err_msg=name,
        )
