"""A program of the IPU whose data sets are of the real TensorFlow: for `millrace run`."""

import numpy as np
import tensorflow as tf
from tensorflow import keras
from tensorflow.python import ipu


def parse(record):  # operations of TensorFlow, traced by it
    row = tf.io.parse_tensor(record, tf.float32)
    return tf.cast(tf.reshape(row, [2]), tf.float32) + tf.random.uniform([2]) * 0.0


rows = np.arange(8, dtype="float32").reshape(4, 2)
records = [tf.io.serialize_tensor(row).numpy() for row in rows]
dataset = tf.data.Dataset.from_tensor_slices(records).map(parse)
print(type(dataset).__module__.split(".")[0], [row.tolist() for row in dataset.as_numpy_iterator()])

strategy = ipu.ipu_strategy.IPUStrategy()
queue = ipu.ipu_outfeed_queue.IPUOutfeedQueue()


@tf.function(jit_compile=True)
def total(n, iterator):
    result = tf.constant(0.0)
    for _ in tf.range(n):
        row = next(iterator)
        result = result + tf.reduce_sum(row)
        queue.enqueue(tf.reduce_mean(row))
    return result


with strategy.scope():
    print(float(strategy.run(total, args=[4, iter(dataset)])), queue.dequeue().tolist())
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="ones")])
    model.compile("sgd", "mse", steps_per_execution=2)
    pairs = tf.data.Dataset.zip((dataset, dataset.map(tf.reduce_sum)))
    history = model.fit(pairs.batch(2, drop_remainder=True).repeat(), steps_per_epoch=2, verbose=0)
print(history.history["loss"])
