"""The loops of twelve families of models, for a GPU and a TPU."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import keras
import pytest
from keras import layers
from target_programs import Target, check_state

ROWS = 32


@dataclass
class Family:
    """A model, its loss, and the shapes of a batch; layers are wide enough to have no values."""

    build: Callable[[], keras.Model]
    x: Any
    y: Any
    more: tuple[Any, ...] = ()  # sample weights
    optimizer: Callable[[], Any] = keras.optimizers.Adam
    loss: str = "mse"
    options: dict[str, Any] = field(default_factory=dict)


def floats(*shape: int) -> Any:
    return (ROWS, *shape), "float32"


def chain(*parts: Any, inputs: tuple[int, ...] = (256,), dtype: str = "float32") -> Any:
    return lambda: keras.Sequential([keras.Input(inputs, dtype=dtype), *(part() for part in parts)])


def wide(*arguments: Any, **options: Any) -> Callable[[], Any]:
    return lambda: layers.Dense(256, *arguments, **options)


def in_policy(name: str) -> Callable[[], Any]:
    return chain(wide("relu", dtype=name), wide(dtype=name))


def attention() -> keras.Model:
    x = inputs = keras.Input((64, 160))
    x = x + layers.MultiHeadAttention(4, 40)(layers.LayerNormalization()(x), x)
    return keras.Model(inputs, layers.GlobalAveragePooling1D()(x))


def two_outputs() -> keras.Model:
    x = inputs = keras.Input((256,))
    x = layers.Dense(256, "relu")(x)
    return keras.Model(inputs, [layers.Dense(256)(x), layers.Dense(1)(x)])


FAMILIES = {
    "dense": Family(chain(wide("relu"), wide()), floats(256), floats(256)),
    "convolution": Family(
        chain(
            lambda: layers.Conv2D(64, 3, padding="same", activation="relu"),
            lambda: layers.MaxPooling2D(),
            lambda: layers.GlobalAveragePooling2D(),
            inputs=(16, 16, 64),
        ),
        floats(16, 16, 64),
        floats(64),
    ),
    "recurrent": Family(
        chain(lambda: layers.LSTM(128), inputs=(20, 64)), floats(20, 64), floats(128)
    ),
    "attention": Family(attention, floats(64, 160), floats(160)),
    "embedding": Family(
        chain(
            lambda: layers.Embedding(1024, 64),
            lambda: layers.GlobalAveragePooling1D(),
            lambda: layers.Dense(10),
            inputs=(32,),
            dtype="int32",
        ),
        ((ROWS, 32), "int32"),
        floats(10),
    ),
    "batch_normalization": Family(
        chain(wide(), layers.BatchNormalization, wide()), floats(256), floats(256)
    ),
    "dropout": Family(chain(wide(), lambda: layers.Dropout(0.1)), floats(256), floats(256)),
    "bfloat16": Family(in_policy("mixed_bfloat16"), floats(256), floats(256)),
    "float16": Family(
        in_policy("mixed_float16"),
        floats(256),
        floats(256),
        optimizer=lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam()),
    ),
    "sample_weights": Family(chain(wide("relu")), floats(256), floats(256), (floats(),)),
    "two_outputs": Family(two_outputs, floats(256), [floats(256), floats(1)]),
    "averages": Family(
        chain(wide("relu")),
        floats(256),
        floats(256),
        optimizer=lambda: keras.optimizers.Adam(use_ema=True, ema_overwrite_frequency=None),
    ),
}
# One of each kind that programs differ in; the others compile in the same way, and longer.
QUICK = ("dense", "dropout", "bfloat16")


@pytest.mark.parametrize(
    "name",
    [pytest.param(each, marks=pytest.mark.quick if each in QUICK else ()) for each in FAMILIES],
)
def test_the_loops_of(kind, name):
    family = FAMILIES[name]
    target = Target(kind)
    with target.strategy.scope():
        model = family.build()
    model.compile(family.optimizer(), family.loss, steps_per_execution=4)
    programs = target.precompile(model, (family.x, family.y, *family.more))
    assert set(programs) == {"train_run", "test_run", "predict_run"}
    check_state(programs["train_run"], model)
