"""Gradients and activations of a pipeline, carried out of it and summarized after each epoch.

A classifier of digits in two stages. Its optimizer enqueues the accumulated gradients of one layer
at every update, two layers of the second stage enqueue activations at every micro-batch, and a
callback prints statistics of each epoch. The digits are random; only the outfeed matters here.
"""

import millrace  # isort: skip - first: it makes JAX the backend of Keras

import sys

import keras
import numpy as np

from millrace.callbacks import OutfeedCallback
from millrace.layers import MaybeOutfeed
from millrace.optimizers import OutfeedOptimizer, OutfeedOptimizerMode

SMALL = "--small" in sys.argv
STEPS, EPOCHS, ROWS, ACCUMULATION = (40, 2, 32, 4) if SMALL else (200, 3, 32, 4)

random = np.random.default_rng(0)
images = random.random((STEPS * ROWS, 28, 28, 1), np.float32)
labels = random.integers(0, 10, STEPS * ROWS)

gradients = millrace.MaybeOutfeedQueue(filters=["Dense_128"])
activations = millrace.MaybeOutfeedQueue()

with millrace.Strategy(devices="cpu:2").scope():
    model = keras.Sequential(
        [
            keras.layers.Flatten(),
            keras.layers.Dense(256, "relu", name="Dense_256"),
            keras.layers.Dense(128, "relu", name="Dense_128"),
            MaybeOutfeed(activations, final_outfeed=False, name="Dense_128_acts"),
            keras.layers.Dense(10, "softmax", name="Dense_10"),
            MaybeOutfeed(activations, final_outfeed=True, name="Dense_10_acts"),
        ]
    )
model.set_pipelining_options(gradient_accumulation_steps_per_replica=ACCUMULATION)
model.set_pipeline_stage_assignment([0, 0, 1, 1, 1, 1])

optimizer = OutfeedOptimizer(
    keras.optimizers.SGD(),
    gradients,
    outfeed_optimizer_mode=OutfeedOptimizerMode.BEFORE_APPLY,  # AFTER_COMPUTE: of micro-batches
    model=model,
)
model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(), steps_per_execution=STEPS)
gradients_callback = OutfeedCallback(gradients, name="Gradients")
activations_callback = OutfeedCallback(activations, name="Activations")
model.fit(
    images,
    labels,
    batch_size=ROWS,
    epochs=EPOCHS,
    callbacks=[gradients_callback, activations_callback],
    verbose=0,
)

first, last = (
    row
    for row in gradients_callback.history
    if "kernel" in row.key and row.epoch in (0, EPOCHS - 1)
)
print(f"\nSpread of {first.key}: {first.std:.6f} in the first epoch, {last.std:.6f} in the last.")
