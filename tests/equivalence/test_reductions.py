"""Every reduction of an update's gradients against sums by hand, wherever they are accumulated.

g(m, r)    gradient of the m-th micro-batch of replica r, by jax.grad
update     SGD: weights - RATE * G, with G made of all g in float64
"""

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import millrace
from case_marks import slow

ROWS, STEPS, UPDATES, RATE = 2, 3, 2, 0.05


@jax.jit
@jax.grad
def gradient(weights, x, y):
    a, b, c, d = weights
    return jnp.mean((jnp.tanh(x @ a + b) @ c + d - y) ** 2)


def by_hand(weights, x, y, replicas, reduction):
    window = STEPS * replicas
    xs, ys = x.reshape(UPDATES, window, ROWS, -1), y.reshape(UPDATES, window, ROWS, -1)
    for update in range(UPDATES):
        found = [gradient(weights, xs[update, k], ys[update, k]) for k in range(window)]
        for place, weight in enumerate(weights):
            g = np.stack([np.asarray(each[place], np.float64) for each in found])
            g = g.reshape(STEPS, replicas, *weight.shape)
            total = g.sum((0, 1))
            divisor = {"mean": window, "mean_then_sum": STEPS, "sum": 1, "sum_then_mean": replicas}
            total /= divisor[reduction.removeprefix("running_")]
            weights[place] = np.float32(weight - RATE * total)
    return weights


def fitted(reduction, devices, replicas, schedule=None, **feed):
    strategy = millrace.Strategy(devices=devices)
    with strategy.scope():
        layers = [keras.layers.Dense(4, "tanh"), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((3,)), *layers])
    steps = UPDATES * STEPS * replicas
    model.compile(keras.optimizers.SGD(RATE), "mse", steps_per_execution=steps)
    model.set_infeed_queue_options(**feed)
    options = {
        "gradient_accumulation_steps_per_replica": STEPS,
        "gradient_accumulation_reduction_method": reduction,
    }
    if schedule is None:
        model.set_gradient_accumulation_options(**options)
    else:
        model.set_pipeline_stage_assignment([0, 1])
        model.set_pipelining_options(pipeline_schedule=schedule, **options)
    x = np.random.normal(size=(steps * ROWS, 3)).astype("float32")
    y = np.random.normal(size=(steps * ROWS, 1)).astype("float32")
    before = model.get_weights()
    model.fit(x, y, batch_size=ROWS, shuffle=False, verbose=0)
    return before, x, y, model.get_weights()


# 64 bytes hold one micro-batch, so a window begins in one block and ends in another.
SMALL_BLOCKS = {"max_block_bytes": 64, "max_resident_bytes": 0}
LAYOUTS = {
    "one device": {"devices": 1, "replicas": 1},
    "over blocks": {"devices": 1, "replicas": 1, **SMALL_BLOCKS},
    "replicas": {"devices": 2, "replicas": 2},
    "replicas over blocks": {"devices": 2, "replicas": 2, **SMALL_BLOCKS},
    "pipeline": {"devices": 2, "replicas": 1, "schedule": "1f1b"},
    "pipeline in halves": {"devices": 2, "replicas": 1, "schedule": "zero_bubble"},
    "replicas of a pipeline": {"devices": 4, "replicas": 2, "schedule": "grouped"},
}
# Of these, all reductions but one are slow.
REPLICAS_IN_PARTS = ("replicas over blocks", "replicas of a pipeline")


def case(reduction, layout):
    is_slow = (reduction, layout) == ("running_mean", "one device") or (
        layout in REPLICAS_IN_PARTS and reduction != "sum_then_mean"
    )
    return slow(reduction, layout) if is_slow else (reduction, layout)


CASES = [
    case(reduction, layout)
    for layout in LAYOUTS
    for reduction in (
        "running_mean",
        "mean_then_sum",
        "running_mean_then_sum",
        "sum_then_mean",
        "sum",
    )
    # On one device the means of all and of one replica are the same.
    if LAYOUTS[layout]["replicas"] > 1 or "then" not in reduction
]


@pytest.mark.parametrize(("reduction", "layout"), CASES)
def test_weights_are_those_of_gradients_by_hand(reduction, layout):
    before, x, y, found = fitted(reduction, **LAYOUTS[layout])
    wanted = by_hand(before, x, y, LAYOUTS[layout]["replicas"], reduction)
    for value, expected in zip(found, wanted, strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-6)
