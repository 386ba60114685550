import functools

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import millrace
from case_marks import slow
from millrace.errors import OptionError, TapError
from millrace.optimizers import OutfeedOptimizer, OutfeedOptimizerMode
from millrace.programs.taps.maybe_outfeed import MaybeOutfeedQueue
from millrace.programs.taps.outfeed_queue import OutfeedQueue

AFTER_COMPUTE, BEFORE_APPLY = OutfeedOptimizerMode.AFTER_COMPUTE, OutfeedOptimizerMode.BEFORE_APPLY
ROWS, WIDTH, STEPS, RATE = 4, 6, 20, 0.1
NAMES = ["Dense_3/bias", "Dense_3/kernel", "Dense_8/bias", "Dense_8/kernel"]  # the last one first
KEYS = [f"{name}:0_grad" for name in NAMES]


def data(steps=STEPS):
    x, y = (np.random.default_rng(seed) for seed in (0, 1))
    return x.random((steps * ROWS, WIDTH), np.float32), y.random((steps * ROWS, 3), np.float32)


def build(kind=keras.Sequential):
    keras.utils.set_random_seed(1)
    return kind(
        [
            keras.Input((WIDTH,)),
            keras.layers.Dense(8, "tanh", name="Dense_8"),
            keras.layers.Dense(3, name="Dense_3"),
        ]
    )


def compiled(model, optimizer, accumulation=1, reduction=None, **kwargs):
    model.set_gradient_accumulation_options(
        gradient_accumulation_steps_per_replica=accumulation,
        gradient_accumulation_reduction_method=reduction,
    )
    model.compile(optimizer, "mse", **{"steps_per_execution": accumulation, **kwargs})
    return model


def fit(model, steps=STEPS, **kwargs):
    x, y = data(steps)
    return model.fit(x, y, batch_size=ROWS, shuffle=False, verbose=0, **kwargs)


@functools.cache
def gradients_by_hand(accumulation, reduction="mean", steps=STEPS):
    """Gradients of each micro-batch and of each update of SGD, by key."""
    model = build()
    weights = [jnp.asarray(w) for w in model.get_weights()]  # kernel, bias, kernel, bias

    def loss(weights, x, y):
        return jnp.mean((model.stateless_call(weights, [], x)[0] - y) ** 2)

    differentiate = jax.jit(jax.grad(loss))
    x, y = data(steps)
    raw, applied = [], []
    for step in range(steps):
        rows = slice(step * ROWS, (step + 1) * ROWS)
        raw.append(differentiate(weights, x[rows], y[rows]))
        if (step + 1) % accumulation == 0:
            window = raw[-accumulation:]
            sums = [sum(parts) for parts in zip(*window, strict=True)]
            applied.append([s / accumulation for s in sums] if reduction == "mean" else sums)
            weights = [w - RATE * g for w, g in zip(weights, applied[-1], strict=True)]
    order = [3, 2, 1, 0]
    return tuple(
        {key: np.stack([g[i] for g in some]) for key, i in zip(KEYS, order, strict=True)}
        for some in (raw, applied)
    )


def assert_close(found, expected):
    assert list(found) == list(expected)
    for key, values in found.items():
        largest = np.abs(expected[key]).max()
        np.testing.assert_allclose(values, expected[key], rtol=0, atol=2e-6 * largest, err_msg=key)


@pytest.mark.parametrize("kind", [OutfeedQueue, MaybeOutfeedQueue])
@pytest.mark.parametrize("mode", [AFTER_COMPUTE, BEFORE_APPLY])
@pytest.mark.parametrize("accumulation", [1, 4])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_gradients_are_those_computed_by_hand(strategy, kind, mode, accumulation, reduction):
    queue = kind()
    model = strategy.attach(build())
    optimizer = OutfeedOptimizer(keras.optimizers.SGD(RATE), queue, mode, model=model)
    fit(compiled(model, optimizer, accumulation, reduction, steps_per_execution=STEPS))
    raw, applied = gradients_by_hand(accumulation, reduction)
    assert_close(queue.dequeue(), raw if mode is AFTER_COMPUTE else applied)


def test_shapes_and_sums_of_both_modes(strategy):
    found = {}
    for mode in OutfeedOptimizerMode:
        queue = MaybeOutfeedQueue(filters=["Dense_8"])
        model = strategy.attach(build())
        optimizer = OutfeedOptimizer(keras.optimizers.SGD(RATE), queue, mode, model=model)
        fit(compiled(model, optimizer, 4, "sum", steps_per_execution=STEPS))
        found[mode] = queue.dequeue()
    raw, applied = found[AFTER_COMPUTE], found[BEFORE_APPLY]
    assert list(raw) == list(applied) == ["Dense_8/bias:0_grad", "Dense_8/kernel:0_grad"]
    assert [v.shape for v in raw.values()] == [(STEPS, 8), (STEPS, WIDTH, 8)]
    assert [v.shape for v in applied.values()] == [(STEPS // 4, 8), (STEPS // 4, WIDTH, 8)]
    for key, values in applied.items():
        sums = raw[key].reshape(STEPS // 4, 4, *values.shape[1:]).sum(axis=1)
        np.testing.assert_allclose(values, sums, rtol=1e-5, atol=1e-7)


def test_a_shorter_last_window(strategy):
    queue = OutfeedQueue()
    model = strategy.attach(build())
    optimizer = OutfeedOptimizer(keras.optimizers.SGD(RATE), queue, model=model)
    fit(compiled(model, optimizer, 4, "sum", steps_per_execution=8), steps=22)
    found = queue.dequeue()
    assert found[KEYS[0]].shape == (6, 3)
    _, applied = gradients_by_hand(4, "sum")
    np.testing.assert_allclose(found[KEYS[0]][:5], applied[KEYS[0]], rtol=2e-5, atol=1e-7)


@pytest.mark.parametrize("filters", [[], ["nowhere"]])
@pytest.mark.parametrize("mode", [AFTER_COMPUTE, BEFORE_APPLY])
def test_filters_that_take_no_key_enqueue_nothing(strategy, filters, mode):
    queue = MaybeOutfeedQueue(filters=filters)
    model = strategy.attach(build())
    optimizer = OutfeedOptimizer(keras.optimizers.SGD(RATE), queue, mode, model=model)
    fit(compiled(model, optimizer, 4))
    assert not queue.enqueued
    assert queue.maybe_dequeue() is None


def test_keys_leave_the_model_out_and_keep_layers_in_layers(strategy):
    queue = OutfeedQueue()

    class Outer(keras.Model):
        def __init__(self):
            super().__init__(name="outer")
            self.inner = build()
            self.last = keras.layers.Dense(1, name="last")
            self.still = keras.layers.Dense(2, name="still", trainable=False)

        def call(self, x):
            return self.last(self.still(self.inner(x)))

    model = strategy.attach(Outer())
    optimizer = OutfeedOptimizer(keras.optimizers.SGD(), queue, model=model)
    model.compile(optimizer, "mse")
    model.fit(np.ones((8, WIDTH)), np.ones((8, 1)), batch_size=4, verbose=0)
    inner = [f"{model.inner.name}/{key}" for key in KEYS]  # a layer of the outer model
    assert "outer/last/bias" in [v.path for v in model.trainable_variables]
    assert list(queue.dequeue()) == ["last/bias:0_grad", "last/kernel:0_grad", *inner]


# The wrapped optimizer

OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(RATE, momentum=0.9),
    "adamw": lambda: keras.optimizers.AdamW(0.01, global_clipnorm=0.1),
    "ema": lambda: keras.optimizers.Adam(0.01, use_ema=True, ema_overwrite_frequency=3),
    "schedule": lambda: keras.optimizers.RMSprop(
        keras.optimizers.schedules.ExponentialDecay(0.01, 5, 0.5)
    ),
    "scaled": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(RATE)),
    "factor": lambda: keras.optimizers.SGD(RATE, loss_scale_factor=128.0),
    "own accumulation": lambda: keras.optimizers.SGD(RATE, gradient_accumulation_steps=3),
}


def values(model):
    return [*model.get_weights(), *(np.asarray(v) for v in model.optimizer.variables)]


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("under", ["keras", "strategy"])
def test_training_is_that_of_the_wrapped_optimizer(strategy, name, under):
    models, histories = [build(), build()], []
    queue = OutfeedQueue()
    for number, model in enumerate(models):
        optimizer = OPTIMIZERS[name]()
        if number:
            optimizer = OutfeedOptimizer(optimizer, queue, model=model)
        if under == "strategy":
            strategy.attach(model)
        model.compile(optimizer, "mse", auto_scale_loss=False)
        histories.append(fit(model, epochs=2).history["loss"])
    # Another program is compiled for it, whose operations XLA may fuse in another way.
    tolerance = {"rtol": 0, "atol": 0} if under == "keras" else {"rtol": 1e-5, "atol": 1e-7}
    np.testing.assert_allclose(*histories, **tolerance)
    for mine, others in zip(*map(values, models), strict=True):
        np.testing.assert_allclose(mine, others, **tolerance)
    assert queue.enqueued == (under == "strategy")


def test_it_is_bit_for_bit_the_same_with_sums_in_one_order(strategy):
    models = [strategy.attach(build()) for _ in range(2)]
    for model, wraps in zip(models, [False, True], strict=True):
        optimizer = keras.optimizers.SGD(RATE, momentum=0.9)
        if wraps:
            optimizer = OutfeedOptimizer(optimizer, OutfeedQueue(), model=model)
        fit(compiled(model, optimizer, 4, "sum", steps_per_execution=STEPS))
    for mine, others in zip(*map(values, models), strict=True):
        np.testing.assert_array_equal(mine, others)


def test_its_attributes_are_those_of_the_wrapped_one():
    model, wrapped = build(), keras.optimizers.SGD(RATE, momentum=0.9, clipnorm=1.0)
    optimizer = OutfeedOptimizer(wrapped, OutfeedQueue(), model=model)
    model.compile(optimizer, "mse")
    assert model.optimizer is optimizer
    assert optimizer.name == "OutfeedOptimizer"
    assert optimizer.mode is BEFORE_APPLY
    fit(model)
    assert optimizer.built
    assert optimizer.iterations is wrapped.iterations
    assert int(optimizer.iterations) == STEPS
    assert [v is w for v, w in zip(optimizer.variables, wrapped.variables, strict=True)]
    assert (optimizer.momentum, optimizer.clipnorm, optimizer.use_ema) == (0.9, 1.0, False)
    optimizer.learning_rate = 0.5
    assert float(wrapped.learning_rate) == 0.5
    optimizer.clipnorm = 2.0
    assert wrapped.clipnorm == 2.0
    with pytest.raises(AttributeError, match="no_such_thing"):
        optimizer.no_such_thing  # noqa: B018
    velocity = [np.ones_like(v) for v in optimizer.variables]
    optimizer.set_weights(velocity)
    np.testing.assert_array_equal(wrapped.variables[-1], velocity[-1])


def test_keras_callbacks_find_what_they_change(strategy):
    model = strategy.attach(build())
    wrapped = keras.optimizers.Adam(0.01, use_ema=True)
    model.compile(OutfeedOptimizer(wrapped, OutfeedQueue(), model=model), "mse")
    callbacks = [
        keras.callbacks.LearningRateScheduler(lambda epoch: 0.5 / (epoch + 1)),
        keras.callbacks.SwapEMAWeights(),
    ]
    fit(model, epochs=2, callbacks=callbacks)
    assert float(wrapped.learning_rate) == 0.25


def test_eager_updates_are_those_of_the_wrapped_one():
    models = build(), build()
    optimizers = (
        keras.optimizers.Adam(0.01),
        OutfeedOptimizer(keras.optimizers.Adam(0.01), OutfeedQueue(), model=models[1]),
    )
    for model, optimizer in zip(models, optimizers, strict=True):
        gradients = [jnp.ones(v.shape) for v in model.trainable_variables]
        optimizer.apply(gradients, model.trainable_variables)
        updates = optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        optimizer.apply(gradients)
        assert int(updates) == 3
    for mine, others in zip(*(m.get_weights() for m in models), strict=True):
        np.testing.assert_array_equal(mine, others)


def test_an_optimizer_that_has_trained_goes_on_with_gradients_to_see(strategy):
    queue = OutfeedQueue()
    model, reference = strategy.attach(build()), strategy.attach(build())
    for one in (model, reference):
        one.compile(keras.optimizers.Adam(0.01), "mse")
        fit(one)
    model.compile(OutfeedOptimizer(model.optimizer, queue, model=model), "mse")
    for one in (model, reference):
        fit(one)
    assert list(queue.dequeue()) == KEYS
    for mine, others in zip(*map(values, (model, reference)), strict=True):
        np.testing.assert_allclose(mine, others, rtol=1e-5, atol=1e-7)


def test_a_saved_model_trains_on_with_the_wrapped_optimizer(strategy, tmp_path):
    queue = OutfeedQueue()
    model = strategy.attach(build())
    wrapped = keras.optimizers.Adam(0.01, clipnorm=1.0)
    model.compile(OutfeedOptimizer(wrapped, queue, AFTER_COMPUTE, model=model), "mse")
    fit(model)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded.optimizer) is keras.optimizers.Adam
    assert loaded.optimizer.get_config() == wrapped.get_config()
    for mine, others in zip(*map(values, (loaded, model)), strict=True):
        np.testing.assert_array_equal(mine, others)
    config = keras.optimizers.serialize(model.optimizer)["config"]
    assert config["name"] == "OutfeedOptimizer"
    assert config["outfeed_optimizer_mode"] == "after_compute"


# Loss scaling


@pytest.mark.parametrize("mode", [AFTER_COMPUTE, BEFORE_APPLY])
def test_gradients_of_a_scaled_loss_are_scaled(strategy, mode):
    queue = OutfeedQueue()
    model = strategy.attach(build())
    scaling = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(RATE), initial_scale=64.0)
    optimizer = OutfeedOptimizer(scaling, queue, mode, model=model)
    fit(compiled(model, optimizer, 4, "sum", auto_scale_loss=False))
    raw, applied = gradients_by_hand(4, "sum")
    found = {key: value / 64 for key, value in queue.dequeue().items()}
    assert_close(found, raw if mode is AFTER_COMPUTE else applied)


@pytest.mark.parametrize("accumulation", [1, 4])
def test_inside_of_loss_scaling_nothing_can_leave_the_update(strategy, accumulation):
    model = strategy.attach(build())
    inner = OutfeedOptimizer(keras.optimizers.SGD(RATE), OutfeedQueue(), model=model)
    compiled(model, keras.optimizers.LossScaleOptimizer(inner), accumulation)
    with pytest.raises(
        TapError, match=r"OutfeedOptimizer\(keras.optimizers.LossScaleOptimizer\(optimizer\)"
    ):
        fit(model)


def test_inside_of_loss_scaling_micro_batches_are_seen(strategy):
    queue = OutfeedQueue()
    model = strategy.attach(build())
    inner = OutfeedOptimizer(keras.optimizers.SGD(RATE), queue, AFTER_COMPUTE, model=model)
    fit(compiled(model, keras.optimizers.LossScaleOptimizer(inner, initial_scale=64.0)))
    assert queue.dequeue()[KEYS[0]].shape == (STEPS, 3)


# What cannot be


def test_arguments_of_another_kind():
    model, sgd, queue = build(), keras.optimizers.SGD(), OutfeedQueue()
    with pytest.raises(OptionError, match=r"Received: model=None. Set .*model=model"):
        OutfeedOptimizer(sgd, queue)
    with pytest.raises(ValueError, match=r"wrapped_optimizer='sgd'. Set an instance"):
        OutfeedOptimizer("sgd", queue, model=model)
    with pytest.raises(OptionError, match="outfeed_queue=None"):
        OutfeedOptimizer(sgd, None, model=model)
    with pytest.raises(OptionError, match=r"\['after_compute', 'before_apply'\]. Received: 'now'"):
        OutfeedOptimizer(sgd, queue, "now", model=model)
    assert OutfeedOptimizer(sgd, queue, "after_compute", model=model).mode is AFTER_COMPUTE


@pytest.mark.parametrize("accumulation", [1, 4])
@pytest.mark.parametrize("mode", [AFTER_COMPUTE, BEFORE_APPLY])
def test_a_model_with_a_train_step_of_its_own(strategy, mode, accumulation):
    class Own(keras.Sequential):
        def train_step(self, state, data):
            return super().train_step(state, data)

    queue = OutfeedQueue()
    model = strategy.attach(build(Own))
    optimizer = OutfeedOptimizer(keras.optimizers.SGD(RATE), queue, mode, model=model)
    fit(compiled(model, optimizer, accumulation, "mean", steps_per_execution=STEPS))
    raw, applied = gradients_by_hand(accumulation, "mean")
    assert_close(queue.dequeue(), raw if mode is AFTER_COMPUTE else applied)


# Replicas


@pytest.mark.parametrize("accumulation", [1, slow(2)])
@pytest.mark.shipped_compiler  # whose rounding the tolerance is made for
def test_replicas_apply_one_gradient_and_compute_their_own(accumulation):
    found = {}
    for mode in OutfeedOptimizerMode:
        queue = OutfeedQueue()
        model = millrace.Strategy(devices=2).attach(build())
        optimizer = OutfeedOptimizer(keras.optimizers.SGD(RATE), queue, mode, model=model)
        fit(compiled(model, optimizer, accumulation, "sum", steps_per_execution=STEPS))
        found[mode] = queue.dequeue()
    _, applied = gradients_by_hand(2 * accumulation, "sum")
    assert_close(found[BEFORE_APPLY], applied)
    for key, values in found[AFTER_COMPUTE].items():
        assert values.shape[:2] == (STEPS // 2, 2)
        sums = values.reshape(-1, 2 * accumulation, *values.shape[2:]).sum(axis=1)
        np.testing.assert_allclose(sums, applied[key], rtol=2e-5, atol=1e-7)


# Pipelines


@pytest.mark.parametrize("mode", [AFTER_COMPUTE, BEFORE_APPLY])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_stages_enqueue_together(mode, reduction):
    queue = MaybeOutfeedQueue()
    model = millrace.Strategy(devices=2).attach(build())
    optimizer = OutfeedOptimizer(keras.optimizers.SGD(RATE), queue, mode, model=model)
    model.set_pipelining_options(
        gradient_accumulation_steps_per_replica=4, gradient_accumulation_reduction_method=reduction
    )
    model.set_pipeline_stage_assignment([0, 1])
    model.compile(optimizer, "mse", steps_per_execution=STEPS)
    fit(model)
    raw, applied = gradients_by_hand(4, reduction)
    assert_close(queue.dequeue(), raw if mode is AFTER_COMPUTE else applied)


@pytest.mark.parametrize("mode", [AFTER_COMPUTE, BEFORE_APPLY])
def test_gradients_of_one_stage_alone(mode):
    queue = MaybeOutfeedQueue(filters=["Dense_8"])
    model = millrace.Strategy(devices=2).attach(build())
    optimizer = OutfeedOptimizer(keras.optimizers.SGD(RATE), queue, mode, model=model)
    model.set_pipelining_options(
        gradient_accumulation_steps_per_replica=4, pipeline_schedule="gpipe"
    )
    model.set_pipeline_stage_assignment([0, 1])
    model.compile(optimizer, "mse", steps_per_execution=STEPS)
    fit(model)
    expected = gradients_by_hand(4)[mode is BEFORE_APPLY]
    assert_close(queue.dequeue(), {key: expected[key] for key in KEYS[2:]})


@pytest.mark.slow
@pytest.mark.shipped_compiler  # whose rounding the tolerance is made for
def test_replicas_of_a_pipeline():
    found = {}
    for mode in OutfeedOptimizerMode:
        queue = OutfeedQueue()
        model = millrace.Strategy(devices=4).attach(build())
        optimizer = OutfeedOptimizer(keras.optimizers.SGD(RATE), queue, mode, model=model)
        model.set_pipelining_options(
            gradient_accumulation_steps_per_replica=2, gradient_accumulation_reduction_method="sum"
        )
        model.set_pipeline_stage_assignment([0, 1])
        model.compile(optimizer, "mse", steps_per_execution=STEPS)
        fit(model)
        found[mode] = queue.dequeue()
    _, applied = gradients_by_hand(4, "sum")
    assert_close(found[BEFORE_APPLY], applied)
    sums = {}
    for key, values in found[AFTER_COMPUTE].items():
        assert values.shape[:2] == (STEPS // 2, 2)
        sums[key] = values.reshape(STEPS // 4, 4, *values.shape[2:]).sum(axis=1)
    assert_close(sums, applied)
