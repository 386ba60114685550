"""Ten models for plans, small enough that hundreds of them are compiled in minutes."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import layers

ROWS = 256  # of one update: activations take most of the memory


def mlp() -> Any:
    """Six equal dense layers."""
    hidden = [layers.Dense(128, "tanh") for _ in range(6)]
    return keras.Sequential([keras.Input((32,)), *hidden, layers.Dense(1)])


def funnel() -> Any:
    """Dense layers of falling width: most weights are in the first."""
    hidden = [layers.Dense(width, "relu") for width in (512, 256, 128, 64)]
    return keras.Sequential([keras.Input((64,)), *hidden, layers.Dense(4)])


def convnet() -> Any:
    """Three convolutions, of which the first has the largest activations."""
    hidden = [layers.Conv2D(width, 3, 2, "same", activation="relu") for width in (8, 16, 32)]
    return keras.Sequential([keras.Input((32, 32, 3)), *hidden, layers.Flatten(), layers.Dense(4)])


def residual() -> Any:
    """Dense blocks with skip connections."""
    x = inputs = keras.Input((64,))
    for _ in range(5):
        x = layers.add([x, layers.Dense(64, "tanh")(x)])
    return keras.Model(inputs, layers.Dense(1)(x))


def unet() -> Any:
    """One level down and up, with a connection across."""
    inputs = keras.Input((16, 16, 3))
    wide = layers.Conv2D(8, 3, padding="same", activation="relu")(inputs)
    x = layers.Conv2D(16, 3, 2, "same", activation="relu")(wide)
    x = layers.Conv2DTranspose(8, 3, 2, "same", activation="relu")(x)
    return keras.Model(inputs, layers.Conv2D(1, 1)(layers.concatenate([wide, x])))


def lstm() -> Any:
    """One recurrent layer."""
    recurrent = layers.LSTM(32, use_cudnn=False)
    return keras.Sequential([keras.Input((24, 16)), recurrent, layers.Dense(8), layers.Dense(1)])


def gru() -> Any:
    """Two recurrent layers."""
    first = layers.GRU(24, use_cudnn=False, return_sequences=True)
    second = layers.GRU(24, use_cudnn=False)
    return keras.Sequential([keras.Input((16, 16)), first, second, layers.Dense(1)])


def embedding() -> Any:
    """A table of embeddings with more weights than all else."""
    table = layers.Embedding(2000, 32)
    pool = layers.GlobalAveragePooling1D()
    return keras.Sequential(
        [keras.Input((20,), dtype="int32"), table, pool, layers.Dense(64, "relu"), layers.Dense(4)]
    )


def transformer() -> Any:
    """Two blocks of attention and dense layers."""
    x = inputs = keras.Input((16, 32))
    for _ in range(2):
        normal = layers.LayerNormalization()(x)
        x = layers.add([x, layers.MultiHeadAttention(2, 16)(normal, normal)])
        x = layers.add([x, layers.Dense(32)(layers.Dense(64, "gelu")(x))])
    return keras.Model(inputs, layers.Dense(1)(layers.GlobalAveragePooling1D()(x)))


def two_inputs() -> Any:
    """Two towers that meet."""
    towers = [keras.Input((24,), name="a"), keras.Input((40,), name="b")]
    x = layers.concatenate([layers.Dense(96, "relu")(tower) for tower in towers])
    return keras.Model(towers, layers.Dense(1)(layers.Dense(96, "relu")(x)))


MODELS: dict[str, Callable[[], Any]] = {
    each.__name__: each
    for each in (
        mlp,
        funnel,
        convnet,
        residual,
        unet,
        lstm,
        gru,
        embedding,
        transformer,
        two_inputs,
    )
}


def prepared(strategy: Any, name: str) -> Any:
    """Returns a compiled model; of no strategy if that is None."""
    keras.backend.clear_session()
    keras.utils.set_random_seed(0)
    if strategy is None:
        model = MODELS[name]()
    else:
        with strategy.scope():
            model = MODELS[name]()
    model.compile("adam", "mse")
    return model


def data(model: Any, rows: int) -> tuple[Any, np.ndarray]:
    """Returns inputs and targets."""
    rng = np.random.default_rng(0)
    x = [
        rng.integers(0, 2000, (rows, *tensor.shape[1:])).astype("int32")
        if tensor.dtype == "int32"
        else rng.standard_normal((rows, *tensor.shape[1:]), dtype="float32")
        for tensor in model.inputs
    ]
    y = rng.standard_normal((rows, *model.outputs[0].shape[1:]), dtype="float32")
    return (x if len(x) > 1 else x[0]), y


def first(x: Any, rows: int) -> Any:
    """Returns the first rows of inputs."""
    return [each[:rows] for each in x] if isinstance(x, list) else x[:rows]
