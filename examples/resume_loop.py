"""An own loop that ends in the middle, and continues with the same numbers."""

import tempfile

import millrace  # before Keras: it makes JAX the backend
import keras
import numpy as np


def train(directory, ends_at=60):
    """Trains a network, and returns the mean loss of each 20 steps."""
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(32, "relu"), keras.layers.Dropout(0.5), keras.layers.Dense(1)]
    model, optimizer = keras.Sequential([keras.Input((4,)), *layers]), keras.optimizers.Adam(0.01)

    def batches():
        random = np.random.default_rng(0)
        while True:
            x = random.normal(size=(16, 4)).astype("float32")
            yield x, x.sum(axis=1, keepdims=True)

    def step(x, y):
        weights = model.trainable_variables
        loss, gradients = millrace.value_and_grad(
            lambda: keras.ops.mean((model(x, training=True) - y) ** 2), weights
        )
        optimizer.apply(gradients, weights)
        losses.enqueue(loss)

    infeed, losses = millrace.InfeedQueue(batches), millrace.OutfeedQueue()
    parts, means = {"model": model, "optimizer": optimizer, "infeed": infeed}, []
    done = millrace.restore_checkpoint(directory, **parts)
    while done < ends_at:
        millrace.repeat(20, step, infeed=infeed)
        done += 20
        means.append(float(losses.dequeue().mean()))
        millrace.save_checkpoint(directory, done, **parts)
    infeed.close()
    return means


with tempfile.TemporaryDirectory() as whole, tempfile.TemporaryDirectory() as broken:
    expected = train(whole)
    losses = train(broken, ends_at=20) + train(broken)  # as if the process were killed at step 20
print("losses:", *(f"{loss:.6f}" for loss in losses))
print("the same losses, to the last bit:", losses == expected)
