"""Models for plans, and what every plan that is applied must keep."""

import keras
import numpy as np

import millrace

SAME = 1e-6  # relative


def mlp():
    return keras.Sequential(
        [keras.Input((16,)), *[keras.layers.Dense(64, "relu") for _ in range(2)], dense(1)],
        name="mlp",
    )


def dense(width):
    return keras.layers.Dense(width)


def one_layer():
    return keras.Sequential([keras.Input((16,)), dense(1)], name="one_layer")


def deep():
    return keras.Sequential([keras.Input((16,)), *[dense(16) for _ in range(9)]], name="deep")


def positions():
    """Most of its memory is activations, of which a V holds fewer micro-batches."""
    hidden = [keras.layers.Dense(128, "tanh") for _ in range(16)]
    return keras.Sequential([keras.Input((512, 128)), *hidden], name="positions")


def conv():
    return keras.Sequential(
        [
            keras.Input((8, 8, 3)),
            keras.layers.Conv2D(8, 3, activation="relu"),
            keras.layers.Conv2D(8, 3, activation="relu"),
            keras.layers.Flatten(),
            dense(4),
        ],
        name="conv",
    )


def text():
    return keras.Sequential(
        [
            keras.Input((12,), dtype="int32"),
            keras.layers.Embedding(50, 16),
            keras.layers.LSTM(16),
            dense(4),
        ],
        name="text",
    )


def residual():
    x = inputs = keras.Input((16,))
    for _ in range(3):
        x = keras.layers.add([x, keras.layers.Dense(16, "tanh")(x)])
    return keras.Model(inputs, dense(1)(x), name="residual")


def two_inputs():
    a, b = keras.Input((8,), name="a"), keras.Input((6,), name="b")
    x = keras.layers.concatenate([keras.layers.Dense(32, "relu")(a), dense(32)(b)])
    return keras.Model([a, b], dense(1)(keras.layers.Dense(32, "tanh")(x)), name="two_inputs")


def attention():
    x = inputs = keras.Input((8, 16))
    x = keras.layers.LayerNormalization()(x)
    x = keras.layers.add([inputs, keras.layers.MultiHeadAttention(2, 8)(x, x)])
    x = keras.layers.Dense(32, "gelu")(x)
    return keras.Model(inputs, dense(1)(keras.layers.GlobalAveragePooling1D()(x)), name="attention")


def data(model, rows):
    """Inputs and targets, drawn from NumPy's random numbers."""
    rng = np.random.default_rng(0)

    def of(tensor):
        shape = (rows, *tensor.shape[1:])
        if tensor.dtype == "int32":
            return rng.integers(0, 50, shape).astype("int32")
        return rng.normal(size=shape).astype("float32")

    x = [of(tensor) for tensor in model.inputs]
    y = rng.normal(size=(rows, *model.outputs[0].shape[1:])).astype("float32")
    return (x if len(x) > 1 else x[0]), y


def first(x, rows):
    """The first rows of x."""
    return [each[:rows] for each in x] if isinstance(x, list) else x[:rows]


def losses_of_keras(build, x, y, rows, optimizer="adam", **fit):
    keras.utils.set_random_seed(0)
    model = build()
    model.compile(optimizer, "mse")
    keras.utils.set_random_seed(1)
    return model.fit(x, y, batch_size=rows, verbose=0, **fit).history


def attached(strategy, build, optimizer="adam", **compile_arguments):
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = build()
    model.compile(optimizer, "mse", **compile_arguments)
    return model


def check_applied(strategy, plan, model, x, y, expected, memory, **fit):
    """Checks the memory and the losses of a model with a plan that was applied."""
    rows = plan.batch_size
    report = strategy.memory_report(model, (first(x, rows), y[:rows]))
    assert abs(report.peak - plan.chosen.peak) <= 0.03 * report.peak
    assert report.peak <= memory
    keras.utils.set_random_seed(1)
    history = model.fit(x, y, batch_size=rows, verbose=0, **fit).history
    assert set(history) == set(expected)
    for name, values in expected.items():
        np.testing.assert_allclose(history[name], values, rtol=SAME, err_msg=name)


def strategy_of(devices):
    return millrace.Strategy(devices=devices)
