"""Gradients and activations of a pipeline, carried out of it and summarized after each epoch.

The optimizer enqueues the accumulated gradients of one layer at every update, a layer of the second
stage enqueues activations at every micro-batch, and a callback prints statistics of each epoch.
"""

import millrace  # before Keras: it makes JAX the backend
import keras
import numpy as np

keras.utils.set_random_seed(0)
images = np.random.default_rng(0).random((1280, 64), np.float32)
labels = np.arange(1280) % 10

gradients = millrace.MaybeOutfeedQueue(filters=["Dense_128"])
activations = millrace.OutfeedQueue()

with millrace.Strategy(devices="cpu:2").scope():
    layers = [
        keras.layers.Dense(256, "relu", name="Dense_256"),
        keras.layers.Dense(128, "relu", name="Dense_128"),
        millrace.layers.Outfeed(activations, name="Dense_128_acts"),
        keras.layers.Dense(10, "softmax", name="Dense_10"),
    ]
    model = keras.Sequential([keras.Input((64,)), *layers])
model.set_pipeline_stage_assignment([0, 1, 1, 1])
model.set_pipelining_options(gradient_accumulation_steps_per_replica=4)

optimizer = millrace.optimizers.OutfeedOptimizer(keras.optimizers.SGD(), gradients, model=model)
model.compile(optimizer, "sparse_categorical_crossentropy", steps_per_execution=40)
callback = millrace.callbacks.OutfeedCallback(gradients, name="Gradients")
model.fit(images, labels, epochs=2, verbose=0, callbacks=[callback])

print("activations:", {name: values.shape for name, values in activations.dequeue().items()})
