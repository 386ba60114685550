"""Optimizers that are made in the function that uses them."""

import keras
import numpy as np
import pytest

from millrace_ipu import ipu
from millrace_ipu import tensorflow as tf
from millrace_ipu.ipu.ops.pipelining_ops import OptimizerFunctionOutput, pipeline

RATE, MOMENTUM = 0.1, 0.5
X = np.array([1.0, -2.0, 0.5, 3.0, 1.5, -1.0, 2.0, 0.25], np.float32)


def run(optimizer_function, weight):
    infeed = ipu.ipu_infeed_queue.IPUInfeedQueue(list(X))
    outfeed = ipu.ipu_outfeed_queue.IPUOutfeedQueue()

    def net(rate):
        stages = [lambda rate, x: (rate, x + 0), lambda rate, x: (rate, weight * x)]
        pipeline(
            stages, 4, inputs=[rate], infeed_queue=infeed, outfeed_queue=outfeed,
            optimizer_function=optimizer_function, outfeed_loss=True,
        )  # fmt: skip

    with ipu.scopes.ipu_scope("/device:IPU:0"):
        for _ in range(2):
            ipu.ipu_compiler.compile(net, [RATE])
    return outfeed.dequeue()


@pytest.mark.parametrize("wrap", [lambda opt: opt, ipu.optimizers.CrossReplicaOptimizer])
def test_f42_an_optimizer_that_is_made_in_the_optimizer_function_keeps_its_state(wrap, system):
    system(2)
    weight = keras.Variable(2.0)

    def optimizer_function(rate, loss):
        return OptimizerFunctionOutput(wrap(keras.optimizers.SGD(RATE, momentum=MOMENTUM)), loss)

    losses = run(optimizer_function, weight)
    first = -RATE * X[:4].sum()
    second = MOMENTUM * first - RATE * X[4:].sum()
    np.testing.assert_allclose(losses, np.repeat([2.0, 2.0 + first], 4) * X, rtol=1e-5)
    np.testing.assert_allclose(weight.numpy(), 2.0 + first + second, rtol=1e-5)


def test_f42_an_optimizer_cannot_be_made_of_values_on_the_device(system):
    system(2)
    with pytest.raises(
        TypeError, match=r"SGD was made with a learning rate that is computed on .* assign"
    ):
        run(
            lambda rate, loss: OptimizerFunctionOutput(keras.optimizers.SGD(rate), loss),
            keras.Variable(2.0),
        )


def test_an_optimizer_that_is_made_in_the_body_of_a_loop_would_lose_its_state(system):
    system(1)
    weight = tf.Variable(2.0)

    def body(x):
        with tf.GradientTape() as tape:
            loss = weight * x
        keras.optimizers.SGD(RATE).apply_gradients([(tape.gradient(loss, weight), weight)])

    infeed = ipu.ipu_infeed_queue.IPUInfeedQueue(list(X))
    with pytest.raises(RuntimeError, match="create layers, metrics and optimizers outside of it"):
        ipu.loops.repeat(4, body, [], infeed)
