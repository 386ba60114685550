"""Models and optimizers whose training continues after breaks with the same numbers."""

import keras
import numpy as np
import pytest
from breaks import BATCH, X_VAL, Y_VAL, X, Y, break_and_compare, make
from keras import layers

import millrace
from case_marks import with_marks

pytestmark = pytest.mark.slow


def attached(model, **compiled):
    millrace.Strategy(devices=1).attach(model)
    model.compile(**{"optimizer": keras.optimizers.Adam(0.01), "loss": "mse", **compiled})
    return model


def two_heads():
    left, right = keras.Input((5,), name="left"), keras.Input((5,), name="right")
    shared = layers.Dense(6, "tanh", name="shared")
    joined = layers.Concatenate(name="joined")([shared(left), shared(right)])
    joined = layers.Dropout(0.2, name="drop")(joined)
    outputs = {"a": layers.Dense(1, name="a")(joined), "b": layers.Dense(2, name="b")(joined)}
    return attached(
        keras.Model({"left": left, "right": right}, outputs, name="net"),
        loss={"a": "mse", "b": "mae"},
        loss_weights={"a": 0.3, "b": 1.0},
        metrics={"a": ["mae"], "b": ["mse"]},
    )


def two_inputs():
    pairs = {"left": X, "right": X[::-1].copy()}
    return {"x": pairs, "y": {"a": Y, "b": np.concatenate([Y, -Y], 1)}, "batch_size": BATCH}


class Written(keras.Model):
    """Built by its first batch, with a step and metrics of its own."""

    def __init__(self):
        super().__init__(name="written")
        self.hidden = layers.Dense(6, "tanh", name="hidden")
        self.norm = layers.BatchNormalization(name="norm")
        self.drop = layers.Dropout(0.3, name="drop")
        self.out = layers.Dense(1, name="out")
        self.norms = keras.metrics.Mean(name="norm_of_outputs")

    def call(self, x, training=False):
        return self.out(self.drop(self.norm(self.hidden(x), training=training), training=training))

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        self.norms.update_state(keras.ops.mean(y_pred**2))
        return super().compute_loss(x, y, y_pred, sample_weight, training)


class Counter(layers.Layer):
    """A layer that counts its calls, in integers, and draws random numbers of its own."""

    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.seed_generator = keras.random.SeedGenerator(3)

    def build(self, shape):
        self.calls = self.add_weight(
            shape=(), dtype="int32", trainable=False, initializer="zeros", name="calls"
        )
        self.seen = self.add_weight(shape=(2, 3), trainable=False, name="seen")

    def call(self, x, training=False):
        if training:
            self.calls.assign_add(1)
            self.seen.assign(self.seen * 0.9 + keras.ops.mean(x))
            x = x + keras.random.normal(keras.ops.shape(x), stddev=0.1, seed=self.seed_generator)
        return x * (1 + 0.01 * keras.ops.cast(self.calls, x.dtype))


def stack(*middle, inputs=(5,), batch=None, **compiled):
    return attached(
        keras.Sequential(
            [keras.Input(inputs, batch_size=batch), *middle, layers.Dense(1, name="last")],
            name="net",
        ),
        **compiled,
    )


def frozen():
    first = layers.Dense(6, "tanh", name="first")
    norm = layers.BatchNormalization(name="norm")
    first.trainable = norm.trainable = False
    return stack(first, norm, layers.Dense(4, "tanh", name="middle"))


def nested():
    inner = keras.Sequential(
        [keras.Input((6,)), layers.Dense(6, "tanh", name="a"), layers.Dropout(0.2, name="b")],
        name="inner",
    )
    return stack(layers.Dense(6, name="first"), inner, layers.BatchNormalization(name="norm"))


def normalized():
    norm = layers.Normalization(name="normalized")
    norm.adapt(X)
    return stack(norm, layers.Dense(4, "tanh", name="first"))


def attending():
    inputs = keras.Input((5,))
    tokens = layers.Reshape((5, 1), name="tokens")(inputs)
    wide = layers.Dense(4, name="wide")(tokens)
    seen = layers.MultiHeadAttention(2, 3, dropout=0.2, name="seen")(wide, wide)
    normed = layers.LayerNormalization(name="normed")(layers.Add(name="sum")([wide, seen]))
    pooled = layers.GlobalAveragePooling1D(name="pooled")(normed)
    return attached(keras.Model(inputs, layers.Dense(1, name="last")(pooled), name="net"))


def convolving():
    return stack(
        layers.Reshape((5, 1), name="rows"),
        layers.Conv1D(4, 3, name="conv"),
        layers.SpatialDropout1D(0.3, name="drop"),
        layers.BatchNormalization(name="norm"),
        layers.Flatten(name="flat"),
    )


MODELS = {
    "written": lambda: attached(Written()),
    "counter": lambda: stack(layers.Dense(4, name="first"), Counter(name="counter")),
    "spectral": lambda: stack(
        layers.SpectralNormalization(layers.Dense(4, name="inner"), name="first"),
        layers.BatchNormalization(name="norm"),
        layers.Dropout(0.3, name="drop"),
    ),
    "frozen": frozen,
    "nested": nested,
    "normalized": normalized,
    "attending": attending,
    "convolving": convolving,
    "gru": lambda: stack(
        layers.Reshape((5, 1), name="rows"),
        layers.GRU(4, dropout=0.2, recurrent_dropout=0.2, name="memory"),
    ),
    "lstm": lambda: stack(
        layers.Reshape((5, 1), name="rows"),
        layers.Bidirectional(layers.LSTM(3, dropout=0.2, name="cells"), name="memory"),
    ),
}


@pytest.mark.parametrize("model", with_marks(MODELS, exhaustive=("gru",)))
def test_models(tmp_path, model):
    break_and_compare(
        tmp_path, 8, 3, 4, build=MODELS[model], every_steps=2, validation_data=(X_VAL, Y_VAL)
    )


def test_two_inputs_and_outputs(tmp_path):
    break_and_compare(tmp_path, 8, 6, build=two_heads, data=two_inputs)


def test_a_stateful_layer_keeps_its_state_within_and_between_epochs(tmp_path):
    build = lambda: stack(  # noqa: E731
        layers.Reshape((5, 1), name="rows"),
        layers.GRU(4, stateful=True, recurrent_dropout=0.2, name="memory"),
        batch=BATCH,
        steps_per_execution=2,
    )
    break_and_compare(tmp_path, 4, 6, 5, build=build, every_steps=2)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16", "float16", "float64"])
def test_policies(tmp_path, policy):
    def build():
        keras.config.set_dtype_policy(policy)
        try:
            return stack(
                layers.Dense(8, "tanh", name="first"),
                layers.BatchNormalization(name="norm"),
                layers.Dropout(0.3, name="drop"),
                optimizer=keras.optimizers.Adam(0.01, use_ema=True),
            )
        finally:
            keras.config.set_dtype_policy("float32")

    break_and_compare(tmp_path, 8, 6, build=build)


OPTIMIZERS = {
    "lion": lambda: keras.optimizers.Lion(0.01, weight_decay=0.1),
    "rmsprop": lambda: keras.optimizers.RMSprop(0.01, momentum=0.5, centered=True),
    "adagrad": lambda: keras.optimizers.Adagrad(0.05),
    "adadelta": lambda: keras.optimizers.Adadelta(0.5),
    "adamax": lambda: keras.optimizers.Adamax(0.01),
    "ftrl": lambda: keras.optimizers.Ftrl(0.05, l2_regularization_strength=0.1),
    "lamb": lambda: keras.optimizers.Lamb(0.01),
    "muon": lambda: keras.optimizers.Muon(0.01),
    "inverse": lambda: keras.optimizers.Adam(
        keras.optimizers.schedules.InverseTimeDecay(0.05, 3, 0.5, staircase=True)
    ),
    "restarts": lambda: keras.optimizers.AdamW(
        keras.optimizers.schedules.CosineDecayRestarts(0.05, 4), clipnorm=0.1, weight_decay=0.01
    ),
    "everything": lambda: keras.optimizers.LossScaleOptimizer(
        keras.optimizers.Adam(
            0.01,
            use_ema=True,
            ema_overwrite_frequency=3,
            gradient_accumulation_steps=4,
            global_clipnorm=1.0,
        ),
        initial_scale=4.0,
        dynamic_growth_steps=3,
    ),
}


@pytest.mark.parametrize(
    "optimizer",
    with_marks(OPTIMIZERS, exhaustive=("rmsprop", "adadelta", "adamax", "ftrl", "lamb", "inverse")),
)
def test_more_optimizers(tmp_path, optimizer):
    break_and_compare(tmp_path, 4, 5, build=lambda: make(OPTIMIZERS[optimizer]), every_steps=3)
