"""Gradient tapes in functions of tf.function, compared with jax.grad."""

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

from millrace.errors import LoopError, UnsupportedError
from millrace_ipu import tensorflow as tf

X = np.linspace(-1, 1, 12, dtype="float32").reshape(4, 3)


@pytest.fixture
def dense():
    layer = keras.layers.Dense(2, activation="tanh")
    layer.build((None, 3))
    return layer


def expected(layer, scale=1.0):
    kernel, bias = (v.value for v in layer.trainable_variables)
    return jax.grad(lambda k, b: scale * jnp.sum(jnp.tanh(X @ k + b) ** 2), (0, 1))(kernel, bias)


def assert_close(found, wanted):
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_gradients_after_the_block(dense):
    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            y = dense(x)
            loss = tf.reduce_sum(y * y)
        return loss, tape.gradient(loss, dense.trainable_variables)

    loss, gradients = step(X)
    assert_close(gradients, expected(dense))
    np.testing.assert_allclose(loss, np.sum(dense(X) ** 2), rtol=1e-5)


def test_gradients_in_the_block_of_an_expression_with_a_factor(dense):
    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            y = dense(x)
            gradients = tape.gradient(3.0 * tf.reduce_sum(y * y), dense.trainable_variables)
            return [g * 2 for g in gradients]

    assert_close(step(X), expected(dense, 6.0))


def gradients_of(layer, x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.square(layer(x)))
    return tape.gradient(loss, layer.trainable_variables)


def test_a_tape_in_a_function_that_is_called_from_a_loop(dense):
    @tf.function
    def total(x, n):
        kernel = tf.zeros([3, 2])
        for _ in tf.range(n):
            gradients = gradients_of(dense, x)
            kernel += gradients[0]
        return kernel

    np.testing.assert_allclose(total(X, 3), 3 * expected(dense)[0], rtol=1e-5)


def test_watched_values_several_targets_and_those_that_are_not_read(dense):
    @tf.function
    def step(x):
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            square, cube = x**2, x**3
            number = 2
        both = tape.gradient([square, cube], x)
        weighed = tape.gradient(square, x, output_gradients=x)
        other = tape.gradient(cube, {"kernel": dense.kernel})
        zeros = tape.gradient(cube, dense.kernel, unconnected_gradients="zero")
        return both, weighed, other["kernel"] is None, zeros, number

    both, weighed, is_none, zeros, number = step(tf.constant(2.0))
    assert (float(both), float(weighed), bool(is_none), number) == (4.0 + 12.0, 8.0, True, 2)
    assert zeros.shape == (3, 2)


def test_statistics_and_seeds_in_the_block_are_kept():
    layer = keras.layers.BatchNormalization(momentum=0.5)
    layer.build((None, 3))

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(x, training=True) ** 3)
        return tape.gradient(loss, layer.trainable_variables)

    step(X)
    np.testing.assert_allclose(layer.moving_mean, 0.5 * X.mean(0), atol=1e-6)


def test_a_tape_that_does_not_watch_variables(dense):
    @tf.function
    def step(x):
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(x)
            loss = tf.reduce_sum(dense(x))
        return tape.gradient(loss, dense.kernel) is None, tape.gradient(loss, x)

    is_none, gradient = step(X)
    assert is_none
    np.testing.assert_allclose(gradient, jax.grad(lambda x: dense(x).sum())(X), rtol=1e-5)


def test_what_a_tape_cannot_do(dense):
    with pytest.raises(LoopError, match=r"not converted. Decorate the function with tf.function"):
        gradients_of(dense, X)

    @tf.function
    def outside(x):
        with tf.GradientTape() as tape:
            y = dense(x)
        loss = tf.reduce_sum(y)
        return tape.gradient(loss, dense.kernel)

    with pytest.raises(LoopError, match=r"test_tape.py:\d+ is not bound to a name.*in the block"):
        outside(X)

    @tf.function
    def before(x):
        tape = tf.GradientTape()
        return tape.gradient(x, x)

    with pytest.raises(LoopError, match=r"before the block of the tape. Compute the target"):
        before(X)

    @tf.function
    def watches_late(x):
        with tf.GradientTape() as tape:
            y = dense(x)
        tape.watch(x)
        return y

    with pytest.raises(LoopError, match=r"outside of the tape's block.*with a name: tape.watch"):
        watches_late(X)

    @tf.function
    def two(x):
        with tf.GradientTape() as a, tf.GradientTape() as b:
            y = dense(x)
        return a, b, y

    with pytest.raises(LoopError, match=r"test_tape.py:\d+: .*only if it is alone in its `with`"):
        two(X)

    @tf.function
    def jacobian(x):
        with tf.GradientTape() as tape:
            y = dense(x)
        return tape.jacobian(y, dense.kernel)

    with pytest.raises(UnsupportedError, match=r"use jax.jacrev"):
        jacobian(X)
