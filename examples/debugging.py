"""Debugging a model: plain Python, values of a compiled step, and the log."""

import logging

import millrace  # before Keras: it makes JAX the backend
import jax
import keras
import numpy as np

logging.basicConfig(format="%(name)s: %(message)s")
logging.getLogger("millrace").setLevel(logging.INFO)  # each compilation and its cause, on stderr


class Peek(keras.layers.Layer):
    """Passes values on, and prints one while the compiled program runs."""

    def call(self, inputs):
        jax.debug.print("largest input of a batch: {:.3f}", jax.numpy.abs(inputs).max())
        return inputs


x = np.random.default_rng(0).normal(size=(64, 8)).astype("float32")
strategy = millrace.Strategy(devices=1)
with strategy.scope():
    model = keras.Sequential([keras.Input((8,)), Peek(), keras.layers.Dense(1)], name="net")
model.compile("sgd", "mse", steps_per_execution=4)

print("called by hand, as plain Python:")
model(x[:16])

print("as a compiled program:", flush=True)
model.evaluate(x, x.sum(axis=1), batch_size=16, verbose=0)
jax.effects_barrier()  # waits for what the program prints

print("step by step, in Keras's own loop:")
model.run_eagerly = True
model.evaluate(x, x.sum(axis=1), batch_size=16, verbose=0)
