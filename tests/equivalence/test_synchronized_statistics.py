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
from test_double_precision import run as run_in_float64

import millrace
from millrace.errors import ModelError, UnsupportedError
from millrace.replay.run import replay

ROWS = 4  # of a micro-batch
STEPS = 3  # in an update
OPTION = {"synchronized_batch_statistics": True}


def table(rows, width=6, targets=1):
    random = np.random.default_rng(rows)
    x = random.normal(1.0, 2.0, size=(rows, width)).astype("float32")
    return x, np.tanh(x[:, :targets] * x[:, 1 : targets + 1]).astype("float32")


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
    optimizer=lambda: keras.optimizers.SGD(0.02, momentum=0.5),
    loss="mse",
    epochs=1,
    options=OPTION,
    per_execution=None,
    prepare=lambda model: None,
    **fit,
):
    keras.utils.set_random_seed(7)
    replicas = len(strategy.devices) if strategy else 1
    with strategy.scope() if strategy else contextlib.nullcontext():
        model = make()
        per_execution = per_execution or steps * replicas
        model.compile(optimizer(), loss, steps_per_execution=per_execution)
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


def test_a_ragged_epoch_trains_as_with_the_big_batch():
    assert_as_big_batch(dense, table(2 * ROWS * STEPS + ROWS + 2), losses=False)


@pytest.mark.slow
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


@pytest.mark.slow
def test_another_model_is_trained_when_the_option_is_off():
    on, _ = train(dense, table(36), ROWS, millrace.Strategy(devices=1), STEPS)
    off, _ = train(dense, table(36), ROWS, millrace.Strategy(devices=1), STEPS, options={})
    assert np.abs(on.get_weights()[0] - off.get_weights()[0]).max() > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("rows", [28, 29, 30])
def test_shorter_updates_and_ragged_batches_are_exact(rows):
    # The rows of the last update are fewer than those of a big batch, in one block or in two.
    assert_as_big_batch(dense, table(rows), losses=False)


@pytest.mark.slow
@pytest.mark.parametrize(("steps", "left"), [(1, 0), (3, 2 * ROWS + 2)])
def test_replicas_share_statistics(steps, left):
    rows = 2 * 2 * ROWS * steps + left
    assert_as_big_batch(dense, table(rows), steps, devices=2, losses=not left)


@pytest.mark.slow
def test_an_update_that_is_larger_than_a_block_is_exact():
    def small_blocks(model):
        model.set_infeed_queue_options(max_block_bytes=ROWS * 7 * 4 * 2, max_resident_bytes=0)

    model = assert_as_big_batch(dense, table(41), losses=False, prepare=small_blocks)
    assert model is not None


@pytest.mark.slow
def test_unrolled_code_of_convolutions_is_exact_for_every_number_of_rows():
    assert_as_big_batch(
        channels_first,
        images(41),
        loss="sparse_categorical_crossentropy",
        losses=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("left", [0, ROWS, 2 * ROWS + 1, 3 * ROWS + 3])
@pytest.mark.parametrize("devices", [2, 3])
def test_replicas_share_statistics_at_every_end_of_an_epoch(devices, left):
    rows = 2 * devices * ROWS * STEPS + left
    assert_as_big_batch(functional_shared, table(rows), devices=devices, losses=not left)


@pytest.mark.slow
def test_the_option_is_one_of_replicas_too():
    def set_option(model):
        model.set_replication_options(**OPTION)

    data = table(24)
    assert_as_big_batch(dense, data, 1, devices=2, options={}, prepare=set_option)


@pytest.mark.slow
def test_a_model_without_such_layers_is_accumulated_as_ever():
    def make():
        return keras.Sequential([keras.Input((6,)), layers.Dense(4, "tanh"), layers.Dense(1)])

    on, _ = train(make, table(30), ROWS, millrace.Strategy(devices=1), STEPS)
    off, _ = train(make, table(30), ROWS, millrace.Strategy(devices=1), STEPS, options={})
    for a, b in zip(on.get_weights(), off.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.slow
def test_sums_are_those_of_the_big_batch_times_the_micro_batches():
    options = {**OPTION, "gradient_accumulation_reduction_method": "sum"}
    strategy = millrace.Strategy(devices=1)
    sgd = lambda rate: lambda: keras.optimizers.SGD(rate)  # noqa: E731
    found, _ = train(dense, table(24), ROWS, strategy, STEPS, options=options, optimizer=sgd(0.01))
    plain, _ = train(dense, table(24), ROWS * STEPS, optimizer=sgd(0.01 * STEPS))
    for a, b in zip(found.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, 1e-6, 1e-6)


class Noisy(keras.layers.Layer):
    """Multiplies by a mask that is drawn anew for every micro-batch."""

    def __init__(self):
        super().__init__()
        self.drop = layers.Dropout(0.5, seed=5)

    def call(self, inputs, training=False):
        return inputs * self.drop(keras.ops.ones_like(inputs), training=training)


@pytest.mark.slow
def test_dropout_draws_a_mask_for_each_micro_batch():
    def noisy():
        inputs = keras.Input((6,))
        hidden = layers.BatchNormalization()(layers.Dense(6)(inputs))
        return keras.Model(inputs, layers.Dense(1)(Noisy()(hidden)))

    def with_masks():
        inputs, mask = keras.Input((6,)), keras.Input((6,))
        hidden = layers.BatchNormalization()(layers.Dense(6)(inputs))
        return keras.Model([inputs, mask], layers.Dense(1)(layers.multiply([hidden, mask])))

    x, y = table(24)
    drop = layers.Dropout(0.5, seed=5)
    masks = [drop(np.ones((ROWS, 6), "float32"), training=True) for _ in range(len(x) // ROWS)]
    found, _ = train(noisy, (x, y), ROWS, millrace.Strategy(devices=1), STEPS)
    plain, _ = train(with_masks, ([x, np.concatenate(masks)], y), ROWS * STEPS)
    for a, b in zip(found.trainable_variables, plain.trainable_variables, strict=True):
        np.testing.assert_allclose(a, b, 1e-6, 1e-6)


@pytest.mark.slow
def test_mixed_precision_trains_as_with_the_big_batch():
    def make():
        keras.config.set_dtype_policy("mixed_bfloat16")
        try:
            return resnet()
        finally:
            keras.config.set_dtype_policy("float32")

    loss = "sparse_categorical_crossentropy"
    assert_as_big_batch(make, images(24), loss=loss, rtol=2**-9)


@pytest.mark.slow
def test_losses_are_scaled_as_ever():
    def scaled():
        return keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.02), initial_scale=64.0)

    assert_as_big_batch(dense, table(24), optimizer=scaled)


def test_callbacks_of_steps_see_losses_of_micro_batches_and_can_stop():
    seen = []

    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen.append(logs["loss"])
            if batch == STEPS - 1:
                self.model.stop_training = True

    def prepare(model):
        model.set_asynchronous_callbacks(True, stop_within=STEPS)

    strategy, data = millrace.Strategy(devices=1), table(48)
    arguments = {"per_execution": 4 * STEPS, "prepare": prepare, "callbacks": [Stop()]}
    found, _ = train(dense, data, ROWS, strategy, STEPS, **arguments)
    assert len(seen) == STEPS
    assert np.isfinite(seen).all()
    plain, _ = train(dense, tuple(part[: ROWS * STEPS] for part in data), ROWS * STEPS)
    for a, b in zip(found.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, 1e-6, 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [36, 33])
def test_a_watch_for_nans_halts_before_the_update(tmp_path, rows):
    data = table(rows)
    data[0][rows - 2, 0] = np.nan  # in the last update, which may be a shorter one
    strategy, models = millrace.Strategy(devices=1), []
    watch = millrace.callbacks.NaNWatch(directory=tmp_path)
    train(dense, data, ROWS, strategy, STEPS, callbacks=[watch], prepare=models.append)
    plain, _ = train(dense, tuple(part[: 2 * ROWS * STEPS] for part in data), ROWS * STEPS)
    for a, b in zip(models[0].get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, 1e-6, 1e-6)
    (flight,) = tmp_path.iterdir()
    assert replay(flight).repeats


@pytest.mark.slow
def test_evaluation_afterwards_uses_the_moving_averages():
    data = table(24)
    found, _ = train(dense, data, ROWS, millrace.Strategy(devices=1), STEPS)
    plain, _ = train(dense, data, ROWS * STEPS)
    np.testing.assert_allclose(
        found.evaluate(*data, verbose=0), plain.evaluate(*data, verbose=0), 1e-5
    )


def refused(error, advice, make=dense, devices=1, **arguments):
    with pytest.raises(error, match=re.escape(advice)):
        train(make, table(24), ROWS, millrace.Strategy(devices=devices), STEPS, **arguments)


def test_a_pipeline_is_refused():
    def prepare(model):
        model.set_pipeline_stage_assignment([0, 0, 0, 0, 1, 1])
        model.set_pipelining_options(gradient_accumulation_steps_per_replica=STEPS)

    advice = "Set synchronized_batch_statistics=False"
    refused(UnsupportedError, advice, devices=2, prepare=prepare, per_execution=STEPS)


def test_recomputation_is_refused():
    def prepare(model):
        model.set_recomputation_options(budget=0.5)

    refused(UnsupportedError, "set_recomputation_options(mode='none')", prepare=prepare)


def test_gradients_of_micro_batches_are_refused():
    watch = millrace.callbacks.TensorStatistics(gradients="*", when="after_compute")
    refused(UnsupportedError, "when='before_apply'", callbacks=[watch])


def test_a_train_step_of_ones_own_is_refused():
    class Own(Subclassed):
        def train_step(self, state, data):
            return super().train_step(state, data)

    refused(ModelError, "Override compute_loss()", make=Own)


FLOAT64 = """
import keras
import test_synchronized_statistics as cases

keras.config.set_floatx("float64")
# Keras computes some layers in float32: BatchNormalization unless told otherwise here.
from keras.src.layers.normalization import batch_normalization
import types

backend = batch_normalization.backend
names = {name: getattr(backend, name) for name in dir(backend) if not name.startswith("__")}
names["result_type"] = lambda *dtypes: "float64"
batch_normalization.backend = types.SimpleNamespace(**names)
for make in (cases.unet, cases.channels_first):
    for rows in (24, 29):
        x, y = cases.images(rows)
        cases.assert_as_big_batch(
            make, (x.astype("float64"), y), rtol=1e-12, losses=rows == 24,
            loss="sparse_categorical_crossentropy",
        )
        print(make.__name__, "agrees")
"""


@pytest.mark.slow
def test_it_agrees_to_the_last_digits_of_float64():
    run_in_float64(FLOAT64, 4)
