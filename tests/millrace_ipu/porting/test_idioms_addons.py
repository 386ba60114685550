"""Idioms of larger programs: optimizers of the addons, and further names of TensorFlow."""

import pytest
from idioms import idiom

from millrace_ipu.errors import UnsupportedNameError

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
def test_optimizers_of_the_addons(program):
    printed = program(
        SETUP
        + """
from ipu_tensorflow_addons.keras.optimizers import AdamIpuOptimizer, SGDIpuOptimizer

stock = tf.keras.optimizers
adam = AdamIpuOptimizer(0.01, epsilon=1e-6, m_dtype=tf.float32, outline_apply_gradients=True)
print(same(trained(adam), trained(stock.Adam(0.01, epsilon=1e-6))))
halves = SGDIpuOptimizer(
    learning_rate=0.1, gradient_transformers=[lambda pairs: [(g / 2, v) for g, v in pairs]]
)
print(same(trained(halves), trained(stock.SGD(0.05))))
"""
    )
    assert printed == "True\nTrue\n"


@idiom(
    "Unsupported, with an error that says what to write",
    "`LAMBIpuOptimizer(weight_decay_rate=, exclude_from_weight_decay=['bias'])`",
)
def test_lamb_is_that_of_keras():
    from millrace_ipu.ipu.keras.optimizers import LAMBIpuOptimizer

    with pytest.raises(UnsupportedNameError, match=r"In its place: keras\.optimizers\.Lamb\."):
        LAMBIpuOptimizer(0.25, weight_decay_rate=0.1)


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
