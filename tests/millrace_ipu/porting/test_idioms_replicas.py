"""Replicated programs of one's own, on four devices."""

import pytest
from idioms import idiom

from millrace_ipu.tensorflow.compat import v1

START = """
import numpy as np
import tensorflow as tf
from tensorflow.python import ipu
from tensorflow.keras import layers

config = ipu.config.IPUConfig()
config.auto_select_ipus = 4
config.configure_ipu_system()
tf.random.set_seed(1)
"""


@pytest.fixture
def graph_mode():
    """Ends the mode that a program of TensorFlow 1 begins."""
    yield
    v1.enable_v2_behavior()


@idiom(
    "Replicas",
    "`tf.GradientTape` in a `tf.function` that `strategy.run` runs on several IPUs, with "
    "`ipu.cross_replica_ops.cross_replica_mean(gradient)`",
)
def test_a_tape_whose_gradients_are_averaged(program):
    text = (
        START
        + """
data = tf.data.Dataset.from_tensor_slices(np.arange(64, dtype=np.float32).reshape(32, 2))
data = data.batch(2, drop_remainder=True).repeat()
infeed = ipu.ipu_infeed_queue.IPUInfeedQueue(data)
outfeed = ipu.ipu_outfeed_queue.IPUOutfeedQueue()
strategy = ipu.ipu_strategy.IPUStrategy()
with strategy.scope():
    weight = tf.Variable(1.0)
    mean_of = ipu.cross_replica_ops.cross_replica_mean

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(weight * x)
        [gradient] = tape.gradient(loss, [weight])
        weight.assign_sub(0.001 * mean_of(gradient))
        outfeed.enqueue({"loss": loss, "replica": ipu.replication_ops.replication_index()})

    @tf.function
    def train(n):
        ipu.loops.repeat(n, step, infeed_queue=infeed)

    strategy.run(train, [3])
found = outfeed.dequeue()
print(found["replica"].shape, found["replica"][0].tolist())
print(found["loss"][0].tolist(), round(float(weight), 4))
"""
    )
    shapes, losses = program(text).splitlines()
    assert shapes == "(3, 4) [0, 1, 2, 3]"
    # Means of elements 0 to 3: 1.5, 5.5, ...; the weight falls by a thousandth of their means.
    assert losses == "[1.5, 5.5, 9.5, 13.5] 0.9295"


@idiom(
    "Replicas",
    "`CrossReplicaOptimizer` around SGD with momentum, in `ipu_compiler.compile` of a session "
    "on several IPUs",
)
def test_a_session_with_a_replicated_loop(program, graph_mode):
    text = """
import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow import keras
from tensorflow.python import ipu

tf.disable_v2_behavior()
rows = np.ones((64, 3), np.float32) * np.arange(64, dtype=np.float32)[:, None]
data = tf.data.Dataset.from_tensor_slices(rows).batch(2, drop_remainder=True).repeat()
infeed = ipu.ipu_infeed_queue.IPUInfeedQueue(data)
outfeed = ipu.ipu_outfeed_queue.IPUOutfeedQueue()

weight = tf.Variable(np.ones((3, 1), np.float32))
optimizer = ipu.optimizers.CrossReplicaOptimizer(keras.optimizers.SGD(0.01, 0.9))

def body(x):
    optimizer.minimize(lambda: tf.reduce_mean(tf.matmul(x, weight)), [weight])
    return outfeed.enqueue((tf.reduce_mean(tf.matmul(x, weight)), weight))

def net():
    return ipu.loops.repeat(2, body, [], infeed)

with ipu.scopes.ipu_scope("/device:IPU:0"):
    run = ipu.ipu_compiler.compile(net)
arrived = outfeed.dequeue()
config = ipu.config.IPUConfig()
config.auto_select_ipus = 4
config.configure_ipu_system()
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    session.run(infeed.initializer)
    session.run(run)
    loss, weight = session.run(arrived)
print(loss.shape, weight.shape, [round(float(x), 4) for x in loss[0]])
print((weight == weight[:, :1]).all())
"""
    shapes, equal = program(text).splitlines()
    # The weight is 1 - 0.01 * 3.5 after the first step, and x is 0.5, 2.5, 4.5 or 6.5 on average.
    assert shapes == "(2, 4) (2, 4, 3, 1) [1.4475, 7.2375, 13.0275, 18.8175]"
    assert equal == "True"


@idiom(
    "Replicas",
    "`cross_replica_sum(x, replica_group_size=2)` of a dictionary in a `tf.function`",
)
def test_sums_over_groups_of_replicas(program):
    text = (
        START
        + """
strategy = ipu.ipu_strategy.IPUStrategy()
outfeed = ipu.ipu_outfeed_queue.IPUOutfeedQueue()
with strategy.scope():
    @tf.function
    def net():
        index = tf.cast(ipu.replication_ops.replication_index(), tf.float32)
        sums = ipu.cross_replica_ops.cross_replica_sum({"a": index, "b": index * 10}, 2)
        outfeed.enqueue(sums)
        return sums["a"]

    print(float(strategy.run(net)))
found = outfeed.dequeue()
print(found["a"].tolist(), found["b"].tolist())
"""
    )
    assert program(text) == "1.0\n[[1.0, 1.0, 5.0, 5.0]] [[10.0, 10.0, 50.0, 50.0]]\n"
