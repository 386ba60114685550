"""Losses that a body or a compiled function has computed, compared with the formulas by hand."""

import keras
import numpy as np
import pytest

from millrace_ipu import ipu
from millrace_ipu import tensorflow as tf


def sgd(rate=0.1):
    return ipu.optimizers.IpuOptimizer(keras.optimizers.SGD(rate))


def test_of_a_function_and_of_its_loop():
    weight, optimizer = tf.Variable(2.0), sgd()

    @tf.function
    def once(x):
        loss = weight * weight * tf.reduce_mean(x)
        [(gradient, variable)] = optimizer.compute_gradients(loss)
        optimizer.apply_gradients([(gradient / 2, variable)])
        return loss

    assert float(once(np.float32([1, 3]))) == 8
    assert float(weight.value) == pytest.approx(2 - 0.1 * 2 * 2)

    @tf.function
    def loop():
        for _ in tf.range(2):
            optimizer.minimize(weight * weight, [weight])

    loop()
    assert float(weight.value) == pytest.approx(1.6 * 0.8**2)


def test_two_losses_of_a_body_with_a_queue_and_a_counter():
    weight, other, calls = tf.Variable(2.0), tf.Variable(1.0), tf.Variable(0.0, trainable=False)
    first, second = sgd(), sgd(1.0)
    outfeed = ipu.ipu_outfeed_queue.IPUOutfeedQueue()
    infeed = ipu.ipu_infeed_queue.IPUInfeedQueue([np.float32(x) for x in (1, 2, 3, 4)])

    def body(count, x):
        calls.assign_add(1.0)
        loss = weight * x * calls
        outfeed.enqueue(loss)
        update = first.minimize(loss, [weight])
        return count + 1, update, second.minimize(other * weight, [other])

    function = tf.function(lambda: ipu.loops.repeat(2, body, [0.0], infeed))
    assert float(np.ravel(function())[0]) == 2
    after = [2 - 0.1 * 1, 2 - 0.1 * 1 - 0.1 * 2 * 2]
    np.testing.assert_allclose(outfeed.dequeue(), [2, after[0] * 2 * 2], rtol=1e-6)
    values = [float(v.value) for v in (weight, other, calls)]
    np.testing.assert_allclose(values, [after[1], 1 - sum(after), 2], rtol=1e-6)


def test_random_numbers_of_the_loss_are_those_of_the_run():
    weights = []
    for is_computed in (True, False):
        keras.utils.set_random_seed(1)
        model = keras.Sequential(
            [keras.Input((1,)), keras.layers.Dense(8), keras.layers.Dropout(0.5)]
        )
        optimizer, x = sgd(), np.ones((4, 1), "float32")

        def body():
            def loss():
                return tf.reduce_mean((model(x, training=True) - 1) ** 2)  # noqa: B023

            given = loss() if is_computed else loss  # noqa: B023
            optimizer.minimize(given, model.trainable_variables)  # noqa: B023

        tf.function(lambda: ipu.loops.repeat(3, body))()
        weights.append(model.get_weights()[0])
    np.testing.assert_array_equal(*weights)


def test_new_functions_of_the_same_code_run_one_program():
    weight, optimizer = tf.Variable(2.0), sgd()
    traces = []

    def loss():
        traces.append(None)
        return weight * weight

    traced = []
    for _ in range(3):
        ipu.loops.repeat(2, lambda: optimizer.minimize(loss(), [weight]))
        traced.append(len(traces))
    assert float(weight.value) == pytest.approx(2 * 0.8**6)
    assert traced[0] == traced[1] == traced[2] > 0
