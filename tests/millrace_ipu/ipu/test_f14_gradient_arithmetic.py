import numpy as np
import pytest
from linear_models import RATE, START, gradients, linear, rows, weight_of

from millrace_ipu.ipu.ipu_strategy import IPUStrategy

BATCH, STEPS = 16, 4


def update(replicas=1, steps=STEPS, batch=BATCH, system=None, **options):
    """Returns what one update has changed, and the gradients `[micro-batches, replicas]`."""
    if system is not None:
        system(replicas)
    np.random.seed(0)
    x, y = rows(64 * 2)
    x, y = x[: batch * steps * replicas], y[: batch * steps * replicas]
    model = linear(IPUStrategy(), steps * replicas)
    if steps > 1:
        model.set_gradient_accumulation_options(steps, **options)
    model.fit(x, y, batch_size=batch, shuffle=False, verbose=0)
    actual = (START - weight_of(model)) / RATE
    return actual, gradients(START, x, y, batch).reshape(steps, replicas)


NORMALIZED = {"experimental_normalize_gradients": True}


def test_f14_normalized_equals_one_big_batch_and_the_default_four_of_them():
    big, _ = update(steps=1, batch=BATCH * STEPS)
    np.testing.assert_allclose(update(**NORMALIZED)[0], big, rtol=1e-4)
    np.testing.assert_allclose(update()[0], STEPS * big, rtol=1e-4)


@pytest.mark.parametrize(
    ("options", "divisor"),
    [
        ({}, 1),
        (NORMALIZED, STEPS * 2),
        ({"gradient_accumulation_reduction_method": "mean"}, STEPS),
        ({"gradient_accumulation_reduction_method": "running_mean"}, STEPS),
    ],
)
def test_f14_replicas_are_summed_with_every_reduction(options, divisor, system):
    actual, expected = update(2, system=system, **options)
    np.testing.assert_allclose(actual, expected.sum() / divisor, rtol=1e-4)
    if not options:
        np.testing.assert_allclose(actual, 8 * expected.mean(), rtol=1e-4)


def test_f14_without_accumulation_replicas_add_up_too(system):
    actual, expected = update(4, steps=1, system=system)
    np.testing.assert_allclose(actual, expected.sum(), rtol=1e-4)
