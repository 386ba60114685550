import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

from millrace_ipu import ipu
from millrace_ipu.ipu.ipu_outfeed_queue import IPUOutfeedQueue
from millrace_ipu.ipu.outfeed_optimizer import OutfeedOptimizer, OutfeedOptimizerMode
from millrace_ipu.ipu.outfeed_wrapper import MaybeOutfeedQueue

ROWS, WIDTH, STEPS, RATE = 4, 6, 500, 0.001
KEYS = ["Dense_128/bias:0_grad", "Dense_128/kernel:0_grad"]
AFTER_COMPUTE, BEFORE_APPLY = OutfeedOptimizerMode


def data():
    random = np.random.default_rng(0)
    x = random.random((STEPS * ROWS, WIDTH), np.float32)
    return x, random.random((STEPS * ROWS, 1), np.float32)


def build():
    keras.utils.set_random_seed(0)
    hidden = keras.layers.Dense(128, "tanh", name="Dense_128")
    return keras.Sequential([keras.Input((WIDTH,)), hidden, keras.layers.Dense(1, name="Dense_1")])


def trained(mode=None, accumulation=4, filters=("Dense_128",)):
    """Returns the model, and the contents of its optimizer's queue."""
    with ipu.ipu_strategy.IPUStrategy().scope():
        model, optimizer = build(), keras.optimizers.SGD(RATE)
        queue = MaybeOutfeedQueue(filters=list(filters))
        if mode is not None:
            optimizer = OutfeedOptimizer(optimizer, queue, mode, model=model)
        model.set_gradient_accumulation_options(
            gradient_accumulation_steps_per_replica=accumulation
        )
        model.compile(optimizer, "mse", steps_per_execution=STEPS)
        model.fit(*data(), batch_size=ROWS, shuffle=False, verbose=0)
    return model, queue.maybe_dequeue()


def raw_by_hand():
    """Returns the gradients of each micro-batch, with an update by their sum after every four."""
    model = build()
    weights = [variable.value for variable in model.trainable_variables]

    def loss(weights, x, y):
        return jnp.mean((model.stateless_call(weights, [], x)[0] - y) ** 2)

    def update(weights, batches):
        raw = jax.lax.map(lambda batch: jax.grad(loss)(weights, *batch), batches)
        return [w - RATE * g.sum(0) for w, g in zip(weights, raw, strict=True)], raw

    batches = [a.reshape(STEPS // 4, 4, ROWS, -1) for a in data()]
    weights, raw = jax.jit(lambda w, b: jax.lax.scan(update, w, b))(weights, batches)
    return weights, [np.reshape(g, (STEPS, *g.shape[2:])) for g in raw]


def test_f60_raw_and_accumulated_gradients(system):
    system(1)
    before, accumulated = trained(BEFORE_APPLY)
    after, raw = trained(AFTER_COMPUTE)
    plain, _ = trained()
    assert list(raw) == list(accumulated) == KEYS  # the last variable first
    assert {key: value.shape for key, value in accumulated.items()} == {
        "Dense_128/bias:0_grad": (125, 128),
        "Dense_128/kernel:0_grad": (125, WIDTH, 128),
    }
    assert raw["Dense_128/bias:0_grad"].shape == (500, 128)
    weights, expected = raw_by_hand()
    for key, by_hand in zip(KEYS, (expected[1], expected[0]), strict=True):
        np.testing.assert_allclose(raw[key], by_hand, rtol=1e-4, atol=1e-5)
        sums = raw[key].reshape(125, 4, *raw[key].shape[1:]).sum(1)
        np.testing.assert_allclose(accumulated[key], sums, rtol=1e-4, atol=1e-5)
    for mine in (before, after, plain):
        for value, by_hand in zip(mine.get_weights(), weights, strict=True):
            np.testing.assert_allclose(value, by_hand, rtol=1e-4, atol=1e-5)


def test_f60_without_accumulation_and_without_a_key(system):
    system(1)
    _, actual = trained(BEFORE_APPLY, accumulation=1)
    assert actual["Dense_128/bias:0_grad"].shape == (500, 128)
    assert trained(BEFORE_APPLY, filters=["nothing"])[1] is None


def test_f60_what_it_takes(system):
    system(1)
    queue, sgd = IPUOutfeedQueue(), keras.optimizers.SGD()
    assert [mode.value for mode in OutfeedOptimizerMode] == ["after_compute", "before_apply"]
    with pytest.raises(ValueError, match=r"needs the model.*model=None\. Set"):
        OutfeedOptimizer(sgd, queue)
    with pytest.raises(ValueError, match=r"wraps a keras.optimizers.Optimizer.*'sgd'"):
        OutfeedOptimizer("sgd", queue, model=build())
    with pytest.raises(ValueError, match=r"enqueues into.*outfeed_queue=None"):
        OutfeedOptimizer(sgd, None, model=build())
    optimizer = OutfeedOptimizer(sgd, queue, model=build())
    assert optimizer.mode is BEFORE_APPLY
    assert optimizer.name == "OutfeedOptimizer"
    assert float(optimizer.learning_rate) == float(sgd.learning_rate)
