"""A loop of ten iterations on the device, with an infeed and an outfeed.

iteration k    x1, x2 of the infeed    ->    {"d1": x1 + x2, "d2": x1 - x2} to the outfeed, k + 1
"""

from millrace_ipu import ipu  # isort: skip - first: it makes JAX the backend of Keras

import numpy as np

from millrace_ipu import tensorflow as tf

LENGTH, TURNS = 800, 10

config = ipu.config.IPUConfig()
config.auto_select_ipus = 1
config.configure_ipu_system()

ones = np.ones(LENGTH, np.float32)
dataset = tf.data.Dataset.from_tensors((ones, ones)).repeat()
infeed_queue = ipu.ipu_infeed_queue.IPUInfeedQueue(dataset)
outfeed_queue = ipu.ipu_outfeed_queue.IPUOutfeedQueue()


def body(counter, x1, x2):
    enqueued = outfeed_queue.enqueue({"d1": x1 + x2, "d2": x1 - x2})
    return counter + 1, enqueued


@tf.function(experimental_compile=True)
def run_loop():
    return ipu.loops.repeat(TURNS, body, [0], infeed_queue)


strategy = ipu.ipu_strategy.IPUStrategy()
with strategy.scope():
    counter = strategy.run(run_loop)

results = outfeed_queue.dequeue()
print(f"counter {int(counter)}")
for key, values in results.items():
    print(f"{key} {values.shape} {values.min()} {values.max()}")
