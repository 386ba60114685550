"""Losses of a training function, read by a thread while later steps still run.

One compiled function runs all steps, and each step enqueues its loss. The thread reads the queue
until it has all losses, each once and in order.
"""

from millrace_ipu import ipu  # isort: skip - first: it makes JAX the backend of Keras

import sys
import threading
import time

import numpy as np

from millrace_ipu import tensorflow as tf

STEPS, ROWS, WIDTH = 100 if "--small" in sys.argv else 1000, 32, 16

config = ipu.config.IPUConfig()
config.auto_select_ipus = 1
config.configure_ipu_system()

random = np.random.default_rng(0)
x = random.random((20 * ROWS, WIDTH), np.float32)
dataset = tf.data.Dataset.from_tensor_slices((x, x.sum(axis=1, keepdims=True)))
dataset = dataset.batch(ROWS, drop_remainder=True).repeat()
outfeed_queue = ipu.ipu_outfeed_queue.IPUOutfeedQueue()


@tf.function(experimental_compile=True)
def train(num_steps, iterator, model, optimizer):
    for _ in tf.range(num_steps):
        features, labels = next(iterator)
        with tf.GradientTape() as tape:
            predictions = model(features, training=True)
            loss = tf.reduce_mean((predictions - labels) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        outfeed_queue.enqueue(loss)


losses = []


def read():
    while len(losses) < STEPS:
        for loss in outfeed_queue:
            losses.append(float(loss))
            if len(losses) % (STEPS // 5) == 0:
                print(f"step {len(losses)}: loss {losses[-1]:.4f}")
        time.sleep(0.001)


strategy = ipu.ipu_strategy.IPUStrategy()
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(8), tf.keras.layers.Dense(1)])
    model.build((ROWS, WIDTH))
    optimizer = tf.keras.optimizers.SGD(0.005)
    reader = threading.Thread(target=read)
    reader.start()
    strategy.run(train, args=[STEPS, iter(dataset), model, optimizer])
    reader.join()

print(f"{len(losses)} losses, {losses[0]:.4f} at first and {losses[-1]:.4f} at last")
