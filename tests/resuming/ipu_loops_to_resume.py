"""Kinds of loops of IPU programs; see loops_to_resume.py."""

import keras
import numpy as np
from loops_to_resume import STEPS, batches, network

from millrace_ipu import ipu
from millrace_ipu import tensorflow as tf
from millrace_ipu.ipu.ops.pipelining_ops import OptimizerFunctionOutput, pipeline
from millrace_ipu.tensorflow.compat import v1

ops = keras.ops


def configure(number):
    config = ipu.config.IPUConfig()
    config.auto_select_ipus = number
    config.configure_ipu_system()


def dataset(anew=True):
    x, y = (np.stack(each) for each in zip(*batches(16), strict=True))
    return tf.data.Dataset.from_tensor_slices((x, y)).shuffle(16, 5, anew).repeat()


def queues(anew=True):
    infeed = ipu.ipu_infeed_queue.IPUInfeedQueue(dataset(anew))
    return infeed, ipu.ipu_outfeed_queue.IPUOutfeedQueue()


def training_body(model, optimizer, losses):
    def body(x, y):
        with tf.GradientTape() as tape:
            noise = tf.random.normal(ops.shape(x), stddev=0.01)
            loss = tf.reduce_mean((model(x + noise, training=True) - y) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return losses.enqueue(loss)

    return body


def compiled_loop(replicas=1):
    configure(replicas)
    infeed, losses = queues()
    model, optimizer = network(), keras.optimizers.Adam(0.01)
    if replicas > 1:
        optimizer = ipu.optimizers.CrossReplicaOptimizer(optimizer)
    body = training_body(model, optimizer, losses)

    def net():
        return ipu.loops.repeat(STEPS, body, [], infeed)

    def call():
        with ipu.scopes.ipu_scope("/device:IPU:0"):
            ipu.ipu_compiler.compile(net)
        return losses.dequeue()

    return {"model": model, "optimizer": optimizer, "infeed": infeed}, {}, call


def compiled_replicas():
    return compiled_loop(2)


def function_with_iterator():
    configure(1)
    strategy = ipu.ipu_strategy.IPUStrategy()
    losses = ipu.ipu_outfeed_queue.IPUOutfeedQueue()
    with strategy.scope():
        model, optimizer = network(), keras.optimizers.Adam(0.01)
        iterator = iter(dataset())
    body = training_body(model, optimizer, losses)

    @tf.function(experimental_compile=True)
    def train(steps, iterator):
        for _ in tf.range(steps):
            x, y = next(iterator)
            body(x, y)

    def call():
        with strategy.scope():
            strategy.run(train, args=[STEPS, iterator])
        return losses.dequeue()

    return {"model": model, "optimizer": optimizer, "data": iterator}, {}, call


def pipelined():
    configure(2)
    infeed, losses = queues()
    model, optimizer = network(0.0), keras.optimizers.SGD(0.05, momentum=0.9)
    hidden, _, last = model.layers

    def first(x, y):
        return hidden(x), y

    def second(x, y):
        return tf.reduce_mean((last(x) - y) ** 2)

    def net():
        return pipeline(
            [first, second], STEPS, inputs=[], infeed_queue=infeed, outfeed_queue=losses,
            optimizer_function=lambda loss: OptimizerFunctionOutput(optimizer, loss),
            outfeed_loss=True,
        )  # fmt: skip

    def call():
        with ipu.scopes.ipu_scope("/device:IPU:0"):
            ipu.ipu_compiler.compile(net)
        return losses.dequeue()

    return {"layers": [hidden, last], "optimizer": optimizer, "infeed": infeed}, {}, call


def in_a_session():
    v1.disable_v2_behavior()
    configure(1)
    infeed, losses = queues(anew=False)  # the initializer begins another pass
    optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
    with tf.Graph().as_default() as graph:

        def body(x, y):
            weight = v1.get_variable("weight", [3, 1])
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((x @ weight.value - y) ** 2)
            [gradient] = tape.gradient(loss, [weight])
            optimizer.apply_gradients([(gradient, weight)])
            return losses.enqueue(loss)

        with ipu.scopes.ipu_scope("/device:IPU:0"):
            operation = ipu.ipu_compiler.compile(lambda: ipu.loops.repeat(STEPS, body, [], infeed))
    arrived = losses.dequeue()
    session = v1.Session()
    session.run(infeed.initializer)

    def call():
        with graph.as_default():
            session.run(operation)
            return session.run(arrived)

    return {"graph": graph, "optimizer": optimizer, "infeed": infeed}, {}, call


IPU_LOOPS = (compiled_loop, compiled_replicas, function_with_iterator, pipelined, in_a_session)
