"""Callbacks for every step, with a whole epoch as one execution.

Keras calls `on_train_batch_end` once per execution. With `set_asynchronous_callbacks(True)` it is
called for every step, while later steps of the same execution still run.
"""

import millrace  # isort: skip - first: it makes JAX the backend of Keras

import sys
import time

import keras
import numpy as np

STEPS = 16 if "--small" in sys.argv else 32
WIDTH = 1_024  # slow enough to watch


class PrintLoss(keras.callbacks.Callback):
    """Prints the arrival time of each loss in the second epoch; the first one compiles."""

    def on_epoch_begin(self, epoch, logs=None):
        """Starts the clock."""
        self.epoch, self.begin = epoch, time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        """Called once per execution, or once per step."""
        if self.epoch == 1:
            seconds = time.perf_counter() - self.begin
            print(f"{seconds:6.2f} s  step {batch:2}  loss {logs['loss']:.4f}", flush=True)


random = np.random.default_rng(0)
x = random.standard_normal((STEPS * 256, WIDTH), dtype="float32")
y = x[:, :1]

with millrace.Strategy().scope():
    model = keras.Sequential(
        [
            keras.Input((WIDTH,)),
            keras.layers.Dense(WIDTH, "relu"),
            keras.layers.Dense(WIDTH, "relu"),
            keras.layers.Dense(1),
        ]
    )
model.compile(optimizer="adam", loss="mse", steps_per_execution=STEPS)

print("once per execution:")
model.fit(x, y, batch_size=256, epochs=2, verbose=0, callbacks=[PrintLoss()])
print("once per step:")
model.set_asynchronous_callbacks(True)
model.fit(x, y, batch_size=256, epochs=2, verbose=0, callbacks=[PrintLoss()])
