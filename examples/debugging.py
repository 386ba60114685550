"""Debugging a model: plain Python, values of a compiled step, the first NaN, and the log."""

import millrace  # isort: skip - first: it makes JAX the backend of Keras

import logging
import sys
import tempfile

import jax
import keras
import numpy as np

logging.basicConfig(format="%(name)s: %(message)s")
logging.getLogger("millrace").setLevel(logging.INFO)  # logs each compilation, and its cause

keras.utils.set_random_seed(0)
x = np.random.default_rng(0).standard_normal((64, 8)).astype("float32")
y = x.sum(axis=1, keepdims=True)
x[37, 2] = np.nan  # the fault to find


class Peek(keras.layers.Layer):
    """Passes values on, and prints one while the compiled program runs."""

    def call(self, inputs):
        """Prints from within the compiled program, once per batch."""
        jax.debug.print("largest input of a batch: {}", jax.numpy.abs(inputs).max())
        return inputs


strategy = millrace.Strategy(devices=1)
with strategy.scope():
    model = keras.Sequential(
        [keras.Input((8,)), Peek(), keras.layers.Dense(1, name="out")], name="net"
    )
model.compile("sgd", "mse", steps_per_execution=4)

# 1. Without a strategy's loop: one direct call of the model, which may run any Python.
print("called by hand:", np.isfinite(model(x[:16])).all())

# 2. As a compiled program: it prints one line per batch from within.
model.evaluate(x, y, batch_size=16, verbose=0)
jax.effects_barrier()

# 3. The faulty update and tensor: training stops before it, and the weights stay finite.
with tempfile.TemporaryDirectory() as directory:
    watch = millrace.callbacks.NaNWatch(directory=directory)
    model.fit(x, y, batch_size=16, shuffle=False, verbose=0, callbacks=[watch])
print("found:", watch.found is not None)
if watch.found is None or not all(np.isfinite(w).all() for w in model.get_weights()):
    sys.exit("training should have stopped before the NaN reached the weights")

# 4. The time taken, and the compilations.
print(strategy.statistics())
