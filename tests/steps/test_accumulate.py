import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

from millrace.base.options import Accumulation, Reduction
from millrace.programs.steps.accumulate import coefficient_of, make_accumulator, scale_of, weight_of


@pytest.fixture(autouse=True)
def strict():
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        yield


def model(dtype="float32"):
    layers = [keras.Input((3,)), keras.layers.Dense(2, dtype=dtype)]
    return keras.Sequential(layers)


def accumulate(accumulator, gradients, coefficients, scale):
    total = accumulator.zeros()
    for gradient, coefficient in zip(gradients, coefficients, strict=True):
        total = accumulator.add(total, gradient, coefficient)
    return accumulator.finish(total, scale)


def gradients_of(count, dtype=np.float32):
    random = np.random.default_rng(0)
    return [
        [jnp.asarray(random.normal(size=shape), dtype) for shape in ((3, 2), (2,))]
        for _ in range(count)
    ]


@pytest.mark.parametrize("rows", [[4, 4, 4], [4, 4, 1], [4]])
def test_mean_weighs_by_rows(rows):
    gradients = gradients_of(len(rows))
    coefficients = [weight_of(Reduction.MEAN, n, rows[0]) for n in rows]
    scale = scale_of(Reduction.MEAN, sum(coefficients), 1)
    accumulator = make_accumulator(model().trainable_variables, Accumulation())
    result = accumulate(accumulator, gradients, coefficients, scale)
    for index, found in enumerate(result):
        stacked = np.stack([np.asarray(g[index], np.float64) for g in gradients])
        wanted = np.average(stacked, axis=0, weights=rows)
        np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_sum_adds_them_as_they_are():
    gradients = gradients_of(3)
    coefficients = [weight_of(Reduction.SUM, n, 4) for n in (4, 4, 1)]
    assert coefficients == [1, 1, 1]
    scale = scale_of(Reduction.SUM, 3.0, 1)
    accumulator = make_accumulator(model().trainable_variables, Accumulation())
    result = accumulate(accumulator, gradients, coefficients, scale)
    wanted = gradients[0][0] + gradients[1][0] + gradients[2][0]
    np.testing.assert_array_equal(result[0], wanted)


@pytest.mark.parametrize(
    ("choice", "dtypes"),
    [
        (None, ["bfloat16", "bfloat16"]),
        ("float32", ["float32", "float32"]),
        (np.float32, ["float32", "float32"]),
        (lambda v: "float32" if v.name == "bias" else None, ["bfloat16", "float32"]),
    ],
)
def test_the_dtype_of_each_accumulator(choice, dtypes):
    accumulator = make_accumulator(
        model("bfloat16").trainable_variables, Accumulation(dtype=choice)
    )
    total = accumulator.add(accumulator.zeros(), gradients_of(1, jnp.bfloat16)[0], 1.0)
    assert [value.dtype.name for value in total] == dtypes


@pytest.mark.parametrize("reduction", Reduction)
def test_variables_that_are_overwritten_are_accumulated_as_by_keras(reduction):
    built = model("bfloat16")
    scale = built.trainable_variables[0]
    scale.overwrite_with_gradient = True
    gradients = gradients_of(3, jnp.bfloat16)
    accumulator = make_accumulator([scale], Accumulation(reduction=reduction, dtype="float32"))
    found = accumulate(accumulator, [g[:1] for g in gradients], [0.5] * 3, 1 / 3)
    optimizer = keras.optimizers.SGD(gradient_accumulation_steps=3)
    for gradient, _ in gradients:
        optimizer.apply([gradient], [scale])
    np.testing.assert_array_equal(found[0], scale.value, strict=True)


def test_a_running_mean_is_never_larger_than_the_gradients_are():
    # In float16 the sum of these is infinite.
    large = [[jnp.full(shape, 40000, "float16") for shape in ((3, 2), (2,))]] * 3
    reduction = Reduction.RUNNING_MEAN
    coefficients = [coefficient_of(reduction, 0.0, number) for number in range(3)]
    np.testing.assert_allclose(coefficients, [1, 1 / 2, 1 / 3])
    accumulation = Accumulation(reduction=reduction)
    accumulator = make_accumulator(model("float16").trainable_variables, accumulation)
    result = accumulate(accumulator, large, coefficients, scale_of(reduction, 3.0, 1))
    np.testing.assert_allclose(result[0], np.full((3, 2), 40000), rtol=1e-3)


@pytest.mark.parametrize(
    ("reduction", "scale"),
    [("mean", 1 / 6), ("sum", 1), ("mean_then_sum", 1 / 3), ("running_mean", 1 / 2)],
)
def test_what_the_sum_over_replicas_is_multiplied_by(reduction, scale):
    assert scale_of(Reduction(reduction), 6.0, 2) == scale
    assert scale_of(Reduction.RUNNING_MEAN_THEN_SUM, 6.0, 2) == 1
