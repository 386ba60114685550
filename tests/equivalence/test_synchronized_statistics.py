"""BatchNormalization over all micro-batches of an update: as plain Keras with the big batch.

    millrace      0 0 | 0 0 | 0 0     three micro-batches, one set of statistics
    plain Keras   0 0   0 0   0 0     one batch
"""

import contextlib
import re

import keras
import numpy as np
import pytest
from keras import layers

import millrace
from millrace.errors import MillraceError, ModelError, UnsupportedError

ROWS = 4  # of a micro-batch
STEPS = 3  # in an update
OPTION = {"synchronized_batch_statistics": True}


def table(rows, width=6, targets=1):
    random = np.random.default_rng(rows)
    x = random.normal(1.0, 2.0, size=(rows, width)).astype("float32")
    return x, (x[:, :targets] * x[:, 1 : targets + 1]).astype("float32")


def images(rows):
    random = np.random.default_rng(rows)
    x = random.normal(0.5, 1.0, size=(rows, 8, 8, 3)).astype("float32")
    return x, random.integers(0, 3, rows)


def dense(**arguments):
    return keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(8),
            layers.BatchNormalization(**arguments),
            layers.Activation("tanh"),
            layers.Dense(5),
            layers.BatchNormalization(momentum=0.6),
            layers.Dense(1),
        ]
    )


def functional_shared():
    inputs = keras.Input((6,))
    shared = layers.BatchNormalization(momentum=0.7)
    hidden = layers.Activation("tanh")(shared(layers.Dense(7)(inputs)))
    return keras.Model(inputs, layers.Dense(1)(shared(layers.Dense(7)(hidden))))


def nested():
    inner_input = keras.Input((5,))
    hidden = layers.BatchNormalization()(layers.Dense(5, "tanh")(inner_input))
    inner = keras.Model(inner_input, hidden, name="inner")
    inputs = keras.Input((6,))
    head = keras.Sequential([layers.BatchNormalization(), layers.Dense(1)], name="head")
    return keras.Model(inputs, head(inner(inner(layers.Dense(5)(inputs)))))


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.first, self.last = layers.Dense(6), layers.Dense(1)
        self.norm = layers.BatchNormalization()

    def call(self, inputs, training=False):
        hidden = self.norm(self.first(inputs), training=training)
        return self.last(keras.ops.tanh(hidden) + hidden)


def frozen():
    model = dense()
    model.layers[1].trainable = False
    return model


def inference_mode():
    inputs = keras.Input((6,))
    hidden = layers.BatchNormalization()(layers.Dense(6)(inputs), training=False)
    return keras.Model(inputs, layers.Dense(1)(layers.BatchNormalization()(hidden)))


def masked():
    return keras.Sequential(
        [
            keras.Input((6,)),
            layers.Embedding(9, 4, mask_zero=True),
            layers.BatchNormalization(momentum=0.8),
            layers.LSTM(4),
            layers.BatchNormalization(),
            layers.Dense(1),
        ]
    )


def words(rows):
    random = np.random.default_rng(rows)
    x = random.integers(1, 9, size=(rows, 6))
    x[np.arange(6) >= random.integers(1, 7, size=(rows, 1))] = 0
    return x.astype("int32"), random.normal(size=(rows, 1)).astype("float32")


def norm_relu(x):
    return layers.Activation("relu")(layers.BatchNormalization(momentum=0.9)(x))


def resnet():
    inputs = keras.Input((8, 8, 3))
    x = norm_relu(layers.Conv2D(4, 3, padding="same", use_bias=False)(inputs))
    for _ in range(2):
        y = norm_relu(layers.Conv2D(4, 3, padding="same", use_bias=False)(x))
        y = layers.BatchNormalization()(layers.Conv2D(4, 3, padding="same")(y))
        x = layers.Activation("relu")(layers.add([x, y]))
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, layers.Dense(3, "softmax")(x))


def unet():
    inputs = keras.Input((8, 8, 3))
    skip = norm_relu(layers.Conv2D(4, 3, padding="same")(inputs))
    x = norm_relu(layers.Conv2D(6, 3, padding="same")(layers.MaxPooling2D()(skip)))
    x = layers.concatenate([layers.UpSampling2D()(x), skip])
    x = norm_relu(layers.Conv2D(4, 3, padding="same")(x))
    return keras.Model(inputs, layers.Dense(3, "softmax")(layers.Flatten()(x)))


def mobilenet():
    inputs = keras.Input((8, 8, 3))
    x = layers.Conv2D(6, 1, use_bias=False)(inputs)
    x = layers.ReLU(6.0)(layers.BatchNormalization()(x))
    x = layers.DepthwiseConv2D(3, padding="same", use_bias=False)(x)
    x = layers.Activation("hard_swish")(layers.BatchNormalization()(x))
    squeezed = layers.Dense(6, "sigmoid")(layers.GlobalAveragePooling2D(keepdims=True)(x))
    x = layers.BatchNormalization()(layers.Conv2D(3, 1)(layers.multiply([x, squeezed])))
    x = layers.GlobalAveragePooling2D()(layers.add([inputs, x]))
    return keras.Model(inputs, layers.Dense(3, "softmax")(x))


def auxiliary_losses():
    inputs = keras.Input((6,))
    x = layers.Dense(6, kernel_regularizer="l2")(inputs)
    x = layers.BatchNormalization(gamma_regularizer=keras.regularizers.L1(0.01))(x)
    x = layers.ActivityRegularization(l2=0.0)(x)
    return keras.Model(inputs, layers.Dense(1)(x))


def channels_first():
    inputs = keras.Input((8, 8, 3))
    x = layers.Permute((3, 1, 2))(layers.Conv2D(4, 3)(inputs))
    x = layers.BatchNormalization(axis=1)(x)
    return keras.Model(inputs, layers.Dense(3, "softmax")(layers.Flatten()(x)))


DENSE = {
    "dense": dense,
    "no-center": lambda: dense(center=False, momentum=0.5),
    "no-scale": lambda: dense(scale=False, center=False),
    "shared": functional_shared,
    "nested": nested,
    "subclassed": Subclassed,
    "frozen": frozen,
    "inference-mode": inference_mode,
    "renorm": lambda: dense(renorm=True),
    "regularized": auxiliary_losses,
}
CONV = {"resnet": resnet, "unet": unet, "mobilenet": mobilenet, "axis-1": channels_first}


def train(
    make,
    data,
    batch_size,
    strategy=None,
    steps=1,
    optimizer=lambda: keras.optimizers.SGD(0.05, momentum=0.9),
    loss="mse",
    epochs=2,
    options=OPTION,
    per_execution=None,
    prepare=lambda model: None,
    **fit,
):
    keras.utils.set_random_seed(7)
    replicas = len(strategy.devices) if strategy else 1
    with strategy.scope() if strategy else contextlib.nullcontext():
        model = make()
        model.compile(optimizer(), loss, metrics=[], steps_per_execution=per_execution or steps * replicas)
    if strategy:
        model.set_gradient_accumulation_options(
            gradient_accumulation_steps_per_replica=steps, **options
        )
    prepare(model)
    arguments = {"shuffle": False, "verbose": 0, "epochs": epochs, **fit}
    history = model.fit(*data, batch_size=batch_size, **arguments)
    return model, history.history


def assert_as_big_batch(make, data, steps=STEPS, devices=1, rtol=1e-6, losses=True, **arguments):
    strategy = millrace.Strategy(devices=devices)
    replicas = len(strategy.devices)
    found, history = train(make, data, ROWS, strategy, steps, **arguments)
    for name in ("options", "prepare", "per_execution"):
        arguments.pop(name, None)
    plain, expected = train(make, data, ROWS * steps * replicas, **arguments)
    for name, here in {v.path.partition("/")[2]: v for v in found.variables}.items():
        assert np.isfinite(here.numpy()).all(), name
    for here, there in zip(found.weights, plain.weights, strict=True):
        a, b = keras.ops.convert_to_numpy(here), keras.ops.convert_to_numpy(there)
        np.testing.assert_allclose(a, b, rtol, rtol * max(1.0, np.abs(b).max()), here.path)
    if losses:
        np.testing.assert_allclose(history["loss"], expected["loss"], rtol=2 * rtol)
    return found


@pytest.mark.parametrize("name", DENSE)
def test_dense_models_train_as_with_the_big_batch(name):
    assert_as_big_batch(DENSE[name], table(36))


@pytest.mark.parametrize("name", CONV)
@pytest.mark.slow
def test_convnets_train_as_with_the_big_batch(name):
    assert_as_big_batch(CONV[name], images(36), loss="sparse_categorical_crossentropy")


@pytest.mark.slow
def test_masks_count_the_values_of_all_micro_batches():
    assert_as_big_batch(masked, words(36))


def test_another_model_is_trained_when_the_option_is_off():
    on, _ = train(dense, table(36), ROWS, millrace.Strategy(devices=1), STEPS)
    off, _ = train(dense, table(36), ROWS, millrace.Strategy(devices=1), STEPS, options={})
    assert np.abs(on.get_weights()[0] - off.get_weights()[0]).max() > 1e-3


@pytest.mark.parametrize("rows", [33, 30, 36 + 4, 36 + 5, 36 + 1])
def test_shorter_updates_and_ragged_batches_are_exact(rows):
    # The rows of the last update are fewer than those of a big batch, in one block or in two.
    assert_as_big_batch(dense, table(rows), losses=False)


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("left", [0, ROWS, 2 * ROWS + 1])
def test_replicas_share_statistics(steps, left):
    rows = 2 * 2 * ROWS * steps + left
    assert_as_big_batch(dense, table(rows), steps, devices=2, losses=not left)


def test_an_update_that_is_larger_than_a_block_is_exact():
    def small_blocks(model):
        model.set_infeed_queue_options(max_block_bytes=ROWS * 7 * 4 * 2, max_resident_bytes=0)

    model = assert_as_big_batch(dense, table(41), losses=False, prepare=small_blocks)
    assert model is not None


def test_unrolled_code_of_convolutions_is_exact_for_every_number_of_rows():
    assert_as_big_batch(
        channels_first,
        images(41),
        loss="sparse_categorical_crossentropy",
        losses=False,
    )
