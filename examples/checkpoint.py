"""A training that fails in the middle, and continues from a checkpoint with the same losses."""

import tempfile

import millrace  # before Keras: it makes JAX the backend
import keras
import numpy as np

x = np.random.default_rng(0).normal(size=(3200, 16)).astype("float32")
y = x.sum(axis=1)


class Fails(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if int(self.model.optimizer.iterations) >= 250:
            raise OSError("the disk has gone")


def train(directory, *callbacks):
    keras.utils.set_random_seed(0)
    with millrace.Strategy(devices=1).scope():
        layers = [keras.layers.Dense(64, "relu"), keras.layers.Dropout(0.2), keras.layers.Dense(1)]
        model = keras.Sequential(layers)
    model.compile("adam", "mse", steps_per_execution=10)
    # Small models train many steps while a checkpoint is written; False: wait for each.
    checkpoint = millrace.callbacks.Checkpoint(directory, every_steps=100, async_save=False)
    return model.fit(x, y, epochs=4, verbose=2, callbacks=[*callbacks, checkpoint]).history["loss"]


with tempfile.TemporaryDirectory() as whole, tempfile.TemporaryDirectory() as broken:
    expected = train(whole)
    try:
        train(broken, Fails())
    except OSError as error:
        print("failed:", error)
    losses = train(broken)  # the same script again: it continues from there
print("the same losses, to the last bit:", losses == expected)
