"""BatchNormalization over all micro-batches of an update: as plain Keras with the big batch.

millrace      0 0 | 0 0 | 0 0     three micro-batches, computed as one batch
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
from case_marks import exhaustive
from millrace.errors import DataError, PlanError, UnsupportedError

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
    metrics=None,
    weighted_metrics=None,
    **fit,
):
    keras.utils.set_random_seed(7)
    replicas = len(strategy.devices) if strategy else 1
    with strategy.scope() if strategy else contextlib.nullcontext():
        model = make()
        per_execution = per_execution or steps * replicas
        model.compile(
            optimizer(),
            loss,
            metrics=metrics,
            weighted_metrics=weighted_metrics,
            steps_per_execution=per_execution,
        )
    if strategy:
        model.set_gradient_accumulation_options(
            gradient_accumulation_steps_per_replica=steps, **options
        )
    prepare(model)
    arguments = {"shuffle": False, "verbose": 0, "epochs": epochs, **fit}
    history = model.fit(*data, batch_size=batch_size, **arguments)
    return model, history.history


def assert_as_big_batch(make, data, steps=STEPS, devices=1, rtol=1e-6, **arguments):
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
    for name, values in expected.items():
        np.testing.assert_allclose(history[name], values, rtol, err_msg=name)
    return found


def test_a_ragged_epoch_trains_as_with_the_big_batch():
    assert_as_big_batch(dense, table(2 * ROWS * STEPS + ROWS + 2))


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
    assert_as_big_batch(dense, table(rows))


@pytest.mark.slow
@pytest.mark.parametrize(("steps", "left"), [(1, 0), (3, 2 * ROWS + 2)])
def test_replicas_share_statistics(steps, left):
    rows = 2 * 2 * ROWS * steps + left
    assert_as_big_batch(dense, table(rows), steps, devices=2)


@pytest.mark.slow
@pytest.mark.parametrize("left", [0, ROWS, 2 * ROWS + 1, 3 * ROWS + 3])
@pytest.mark.parametrize("devices", [2, 3])
def test_replicas_share_statistics_at_every_end_of_an_epoch(devices, left):
    rows = 2 * devices * ROWS * STEPS + left
    assert_as_big_batch(functional_shared, table(rows), devices=devices)


@pytest.mark.slow
def test_the_option_is_one_of_replicas_too():
    def set_option(model):
        model.set_replication_options(**OPTION)

    data = table(24)
    assert_as_big_batch(dense, data, 1, devices=2, options={}, prepare=set_option)


def sequences():
    inputs = keras.Input((None, 6))
    hidden = layers.BatchNormalization()(layers.Dense(4)(inputs))
    return keras.Model(inputs, layers.Dense(1)(layers.GlobalAveragePooling1D()(hidden)))


def test_replicas_share_statistics_and_gradients():
    # Five rows are left, which two replicas cannot share out equally: one computes them.
    assert_as_big_batch(dense, table(2 * ROWS * STEPS + 5), devices=2)


def with_dropout():
    model = dense()
    model.add(layers.Dropout(0.5, seed=5))
    return model


@pytest.mark.slow
def test_dropout_masks_are_those_of_the_big_batch():
    assert_as_big_batch(with_dropout, table(2 * ROWS * STEPS))


def masked_targets():
    inputs = keras.Input((6,))
    hidden = layers.Embedding(9, 4, mask_zero=True)(inputs)
    hidden = layers.BatchNormalization(momentum=0.8)(hidden)
    return keras.Model(inputs, layers.TimeDistributed(layers.Dense(1))(hidden))


@pytest.mark.slow
@pytest.mark.parametrize("rows", [36, 34])
def test_masked_losses_are_those_of_the_big_batch(rows):
    x, _ = words(rows)
    y = np.random.default_rng(1).normal(size=(rows, 6, 1)).astype("float32")
    assert_as_big_batch(masked_targets, (x, y))


@pytest.mark.slow
@pytest.mark.parametrize("left", [0, 7])
@pytest.mark.parametrize("devices", [2, 3])
def test_masks_count_the_values_of_all_replicas(devices, left):
    assert_as_big_batch(masked, words(devices * ROWS * STEPS + left), devices=devices)


@pytest.mark.slow
def test_convnets_on_replicas_train_as_with_the_big_batch():
    data, loss = images(2 * ROWS * STEPS), "sparse_categorical_crossentropy"
    assert_as_big_batch(resnet, data, devices=2, loss=loss, metrics=["accuracy"])


@pytest.mark.slow
@pytest.mark.parametrize("no_false_alarms", [None])  # a budget tries several choices of a program
@pytest.mark.parametrize("devices", [exhaustive(1), 2])
def test_a_budget_of_recomputation_changes_no_numbers(devices, no_false_alarms):
    def prepare(model):
        model.set_recomputation_options(budget=0.9)

    data, loss = images(devices * ROWS * STEPS), "sparse_categorical_crossentropy"
    assert_as_big_batch(resnet, data, devices=devices, loss=loss, prepare=prepare)


class Batches(keras.utils.PyDataset):
    def __init__(self, data, rows):
        super().__init__()
        self._data, self._rows = data, rows

    def __len__(self):
        return -(-len(self._data[0]) // self._rows)

    def __getitem__(self, index):
        return tuple(part[index * self._rows :][: self._rows] for part in self._data)


def assert_same(found, plain, *histories):
    np.testing.assert_allclose(*(history["loss"] for history in histories), 1e-6)
    for a, b in zip(found.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, 1e-6, 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 2])
def test_data_sets_are_merged_as_arrays_are(devices):
    update = devices * ROWS * STEPS
    data = table(2 * update + ROWS + 1)
    strategy = millrace.Strategy(devices=devices)
    found, history = train(dense, (Batches(data, ROWS),), None, strategy, STEPS, epochs=2)
    plain, expected = train(dense, (Batches(data, update),), None, epochs=2)
    assert_same(found, plain, history, expected)


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 2])
def test_shuffled_weighted_validated_epochs_are_those_of_the_big_batch(devices):
    data = table(2 * devices * ROWS * STEPS + 5)
    weights = np.random.default_rng(0).random(len(data[0])).astype("float32")
    assert_as_big_batch(
        dense,
        data,
        devices=devices,
        epochs=3,
        shuffle=True,
        sample_weight=weights,
        validation_data=table(20),
        metrics=["mae"],
        weighted_metrics=["mse"],
    )


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 2])
def test_steps_per_epoch_counts_micro_batches(devices):
    data, update = table(4 * devices * ROWS * STEPS), devices * STEPS
    strategy = millrace.Strategy(devices=devices)
    found, history = train(dense, data, ROWS, strategy, STEPS, epochs=2, steps_per_epoch=2 * update)
    plain, expected = train(dense, data, ROWS * update, epochs=2, steps_per_epoch=2)
    assert_same(found, plain, history, expected)


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 2])
def test_programs_compiled_ahead_are_those_of_merged_batches(devices):
    data, strategy = table(2 * devices * ROWS * STEPS), millrace.Strategy(devices=devices)
    batch = tuple(part[:ROWS] for part in data)

    def prepare(model):
        model.precompile(batch)
        assert f"[{ROWS * STEPS},6]" in str(strategy.memory_report(model, batch))

    train(dense, data, ROWS, strategy, STEPS, prepare=prepare)


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 2])
def test_a_training_goes_on_from_a_checkpoint(tmp_path, devices):
    data = table(5 * devices * ROWS * STEPS + 5)
    whole, _ = train(dense, data, ROWS, millrace.Strategy(devices=devices), STEPS, epochs=3)

    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen.append(batch)
            if len(seen) == 8:
                raise RuntimeError

    seen = []
    for extra in ([Stop()], []):
        checkpoint = millrace.callbacks.Checkpoint(
            tmp_path, every_steps=2 * devices, async_save=False
        )
        with contextlib.suppress(RuntimeError):
            found, _ = train(
                dense,
                data,
                ROWS,
                millrace.Strategy(devices=devices),
                STEPS,
                epochs=3,
                callbacks=[checkpoint, *extra],
            )
    for a, b in zip(found.get_weights(), whole.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


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


@pytest.mark.slow
def test_callbacks_of_steps_see_losses_of_updates_and_can_stop():
    seen = []

    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen.append(logs["loss"])
            if batch == 1:
                self.model.stop_training = True

    def prepare(model):
        model.set_asynchronous_callbacks(True, stop_within=STEPS)

    strategy, data = millrace.Strategy(devices=1), table(48)
    arguments = {"per_execution": 4 * STEPS, "prepare": prepare, "callbacks": [Stop()]}
    found, _ = train(dense, data, ROWS, strategy, STEPS, **arguments)
    expected = []
    log = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda _, logs: expected.append(logs["loss"])
    )
    first = tuple(part[: 2 * ROWS * STEPS] for part in data)
    plain, _ = train(dense, first, ROWS * STEPS, callbacks=[log])
    np.testing.assert_allclose(seen, expected, 1e-6)
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
    assert (watch.found.tensor.kind, watch.found.nans > 0) == ("activation", True)


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


def test_sums_are_refused():
    options = {**OPTION, "gradient_accumulation_reduction_method": "sum"}
    refused(UnsupportedError, "gradient_accumulation_reduction_method='mean'", options=options)


def test_parts_with_statistics_of_their_own_are_refused():
    options = {**OPTION, "micro_batch": 4}
    refused(
        UnsupportedError, "micro_batch=4 divides batches. Set micro_batch='whole'", options=options
    )


def test_an_epoch_that_ends_within_an_update_is_refused():
    refused(PlanError, "Set steps_per_epoch=3", steps_per_epoch=4)


def test_differing_micro_batches_are_refused():
    def lengths():
        for k in range(6):
            yield np.ones((ROWS, 2 + k, 6), "float32"), np.ones((ROWS, 1), "float32")

    with pytest.raises(DataError, match="Pad them to one shape"):
        train(sequences, (lengths(),), None, millrace.Strategy(devices=1), STEPS)


def test_gradients_of_micro_batches_are_refused():
    watch = millrace.callbacks.TensorStatistics(gradients="*", when="after_compute")
    refused(UnsupportedError, "when='before_apply'", callbacks=[watch])


def test_a_train_step_of_ones_own():
    class Own(Subclassed):
        def train_step(self, state, data):
            return super().train_step(state, data)

    assert_as_big_batch(Own, table(24))


@pytest.mark.slow
def test_it_agrees_to_the_last_digits_of_float64():
    run_in_float64("float64_statistics.py", 4)
