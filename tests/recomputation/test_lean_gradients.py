"""Gradients in less memory: the same values, and compiled into less."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from millrace._compat.jax_executables import sizes_of
from millrace._compat.jaxpr import as_function, inlined, primitive_counts, trace
from millrace.programs.recomputation.lean_gradients import with_lean_gradients

RANDOM = np.random.default_rng(0)


def lean(function, *arguments):
    graph = with_lean_gradients(inlined(trace(jax.grad(function), *arguments)[0]))
    return jax.jit(as_function(graph)), primitive_counts(graph.equations)


@pytest.mark.parametrize(
    ("channels", "multiplier", "window", "stride", "dilation", "padding"),
    [
        (8, 1, 3, 1, 1, "SAME"),
        (8, 2, 3, 1, 1, "VALID"),
        (6, 1, 5, 2, 1, "SAME"),
        (4, 3, 3, 1, 2, "SAME"),
        (5, 1, 3, 2, 1, ((1, 0), (0, 1))),
    ],
)
def test_of_the_weights_of_a_depthwise_convolution(
    channels, multiplier, window, stride, dilation, padding
):
    x = RANDOM.normal(size=(4, 17, 17, channels)).astype("float32")
    w = RANDOM.normal(size=(window, window, 1, channels * multiplier)).astype("float32")

    def loss(w):
        y = lax.conv_general_dilated(
            x, w, (stride, stride), padding, rhs_dilation=(dilation, dilation),
            dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=channels,
        )  # fmt: skip
        return jnp.sum(jnp.sin(y))

    run, counts = lean(loss, w)
    assert counts["conv_general_dilated"] == 1  # the one of forward
    expected = jax.jit(jax.grad(loss))(w)
    np.testing.assert_allclose(run(w)[0], expected, rtol=2e-6, atol=2e-6 * abs(expected).max())


def test_a_grouped_convolution_stays():
    x = RANDOM.normal(size=(4, 9, 9, 8)).astype("float32")
    w = RANDOM.normal(size=(3, 3, 2, 8)).astype("float32")

    def loss(w):
        y = lax.conv_general_dilated(
            x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"),
            feature_group_count=4,
        )  # fmt: skip
        return jnp.sum(jnp.sin(y))

    assert lean(loss, w)[1]["conv_general_dilated"] == 2


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize(
    ("window", "strides", "padding"),
    [
        ((1, 2, 2, 1), (1, 2, 2, 1), "VALID"),
        ((1, 3, 3, 1), (1, 2, 2, 1), "SAME"),
        ((1, 3, 3, 1), (1, 1, 1, 1), "VALID"),
        ((1, 3, 2, 1), (1, 2, 3, 1), ((0, 0), (1, 0), (0, 1), (0, 0))),
        ((1, 3, 1), (1, 2, 1), "SAME"),
    ],
)
def test_of_a_maximum_over_windows(window, strides, padding, ties):
    shape = (2, 17, 17, 5) if len(window) == 4 else (2, 17, 5)
    x = RANDOM.normal(size=shape).astype("float32")
    x = np.maximum(x, 0) if ties else x  # many windows of zeros: the first one takes it

    def loss(x):
        y = lax.reduce_window(x, -jnp.inf, lax.max, window, strides, padding)
        return jnp.sum(jnp.sin(y) * jnp.arange(shape[-1]))

    run, counts = lean(loss, x)
    assert "select_and_scatter_add" not in counts
    np.testing.assert_allclose(run(x)[0], jax.jit(jax.grad(loss))(x), rtol=1e-6, atol=1e-6)


@pytest.mark.shipped_compiler
def test_they_take_less_memory():
    x = jnp.ones((8, 16, 16, 256))
    w = jnp.ones((3, 3, 1, 256))

    def loss(w):
        y = lax.conv_general_dilated(
            x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"),
            feature_group_count=256,
        )  # fmt: skip
        y = lax.reduce_window(y, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        return jnp.sum(jnp.sin(y))

    plain = sizes_of(jax.jit(jax.grad(loss)).lower(w).compile()).temporary_bytes
    found = sizes_of(lean(loss, w)[0].lower(w).compile()).temporary_bytes
    assert found < 0.7 * plain
