"""Idioms of larger programs: optimizers of the addons, and further names of TensorFlow."""

import numpy as np
import pytest
from idioms import idiom

from case_marks import slow
from millrace_ipu.ipu.keras.optimizers import LAMBIpuOptimizer

SETUP = """
import numpy as np
import tensorflow as tf
from tensorflow.python import ipu

x = np.random.default_rng(1).normal(size=(8, 4)).astype("float32")
y = x.sum(1, keepdims=True)


def trained(optimizer):
    tf.random.set_seed(3)
    with ipu.ipu_strategy.IPUStrategy().scope():
        model = tf.keras.Sequential([tf.keras.Input(4), tf.keras.layers.Dense(1, name="out")])
        model.compile(optimizer, "mse", steps_per_execution=2)
    model.fit(x, y, batch_size=2, epochs=2, shuffle=False, verbose=0)
    return model.get_weights()


def same(one, other):
    return all(np.allclose(a, b, atol=1e-6) for a, b in zip(one, other))
"""


@pytest.mark.slow
@idiom("Training", "`from ipu_tensorflow_addons.keras.optimizers import AdamIpuOptimizer`")
@idiom("Training", "`SGDIpuOptimizer(..., gradient_transformers=[f])`")
@idiom("Training", "`LAMBIpuOptimizer(weight_decay_rate=, exclude_from_weight_decay=['bias'])`")
def test_optimizers_of_the_addons(program):
    printed = program(
        SETUP
        + """
from ipu_tensorflow_addons.keras.optimizers import (
    AdamIpuOptimizer, LAMBIpuOptimizer, SGDIpuOptimizer
)

stock = tf.keras.optimizers
adam = AdamIpuOptimizer(0.01, epsilon=1e-6, m_dtype=tf.float32, outline_apply_gradients=True)
print(same(trained(adam), trained(stock.Adam(0.01, epsilon=1e-6))))
halves = SGDIpuOptimizer(
    learning_rate=0.1, gradient_transformers=[lambda pairs: [(g / 2, v) for g, v in pairs]]
)
print(same(trained(halves), trained(stock.SGD(0.05))))
lamb = LAMBIpuOptimizer(
    0.01, weight_decay_rate=0.0, exclude_from_layer_adaptation=["out"], epsilon=1e-9
)
print(same(trained(lamb), trained(stock.Adam(0.01, epsilon=1e-9))))
"""
    )
    assert printed == "True\nTrue\nTrue\n"


@pytest.mark.parametrize("clip", [None, slow(0.5)])
def test_a_step_of_lamb_is_that_of_the_paper(clip):
    import keras

    optimizer = LAMBIpuOptimizer(
        0.25, weight_decay_rate=0.1, exclude_from_weight_decay=["bias"], weight_norm_clip=clip
    )
    kernel = keras.Variable(np.array([3.0, 4.0]), name="kernel")
    bias = keras.Variable(np.array([3.0, 4.0]), name="bias")
    gradient = np.array([0.5, -0.25], "float32")
    optimizer.apply([gradient, gradient], [kernel, bias])
    # After the first step the means are those of the gradient itself, without their bias.
    step = gradient / (np.abs(gradient) + 1e-6)
    decayed = step + 0.1 * np.array([3.0, 4.0])
    norm = 5.0 if clip is None else clip
    expected = np.array([3.0, 4.0]) - 0.25 * norm / np.linalg.norm(decayed) * decayed
    np.testing.assert_allclose(np.asarray(kernel.value), expected, rtol=1e-5)
    # A variable that is not decayed is not adapted either, unless the program says so.
    np.testing.assert_allclose(np.asarray(bias.value), [3 - 0.25, 4 + 0.25], rtol=1e-5)
    again = LAMBIpuOptimizer.from_config(optimizer.get_config())
    assert again.get_config() == optimizer.get_config()


@idiom("TensorFlow", "`tf.experimental.numpy.dsplit`, `hstack`, `vstack`")
@idiom("Logs and caches", "`tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.ERROR)`")
@idiom("TensorFlow", "`tf.constant_initializer`, `tf.zeros_initializer`, `tf.as_dtype`")
@idiom("TensorFlow", "`tf.gather(..., batch_dims=1)`, `tf.math.unsorted_segment_sum`")
@idiom("Saving", "`tf.io.gfile.makedirs`, `tf.train.latest_checkpoint(directory)`")
def test_further_names_of_tensorflow(program):
    printed = program(
        SETUP
        + """
tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.ERROR)
from tensorflow.python.platform import tf_logging

tf_logging.info("not shown")
numpy = tf.experimental.numpy
print(len(numpy.dsplit(tf.ones((2, 2, 3)), 3)), numpy.hstack([tf.ones((2, 1))] * 2).shape)
print(tf.gather(tf.constant([[1, 2], [3, 4]]), tf.constant([[1, 1], [0, 1]]), batch_dims=1))
print(tf.math.unsorted_segment_sum(tf.constant([1.0, 2.0, 3.0]), tf.constant([1, 0, 1]), 3))


class Scaled(tf.keras.layers.Layer):
    def build(self, shape):
        dtype = tf.as_dtype(self.dtype or tf.keras.backend.floatx())
        initializer = tf.constant_initializer(0.5)
        self.w = self.add_weight("value", shape=[1], initializer=initializer, dtype=dtype)

    def call(self, inputs):
        return tf.nn.softplus(self.w) * inputs


layer = Scaled()
layer(tf.ones((1, 2)))
print(layer.w.numpy(), tf.zeros_initializer()((2,)))
tf.io.gfile.makedirs("out")
model = tf.keras.Sequential([tf.keras.Input(4), tf.keras.layers.Dense(1)])
print(tf.train.latest_checkpoint("out"))
model.save_weights("out/first")
model.save_weights("out/second")
print(tf.train.latest_checkpoint("out"), tf.io.gfile.exists("out"))
model.load_weights(tf.train.latest_checkpoint("out"))
"""
    )
    assert printed.splitlines() == [
        "3 (2, 2)",
        "[[2 2]",
        " [3 4]]",
        "[2. 4. 0.]",
        "[0.5] [0. 0.]",
        "None",
        "out/second.weights.h5 True",
    ]
