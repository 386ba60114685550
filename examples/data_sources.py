"""The same rows from arrays, from a PyDataset and from a generator, with equal results.

Small arrays stay on the device, and batches are gathered there. For all other data, a thread stacks
the next batches into blocks while the device works on earlier ones.
"""

import millrace  # isort: skip - first: it makes JAX the backend of Keras

import math
import sys

import keras
import numpy as np

ROWS = 1_000 if "--small" in sys.argv else 8_000
BATCH = 32
STEPS = math.ceil(ROWS / BATCH)  # the last batch is smaller

random = np.random.default_rng(0)
x = random.standard_normal((ROWS, 8), dtype="float32")
y = x.sum(axis=1, keepdims=True)


class Rows(keras.utils.PyDataset):
    """Batches by index, as if read from files."""

    def __len__(self):
        return STEPS

    def __getitem__(self, index):
        rows = slice(index * BATCH, (index + 1) * BATCH)
        return x[rows], y[rows]


def generator():
    while True:  # endless, so fit needs the number of steps per epoch
        for begin in range(0, ROWS, BATCH):
            yield x[begin : begin + BATCH], y[begin : begin + BATCH]


def train(name, data, **arguments):
    keras.utils.set_random_seed(0)
    strategy = millrace.Strategy()
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((8,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(1)]
        )
    model.compile(optimizer="adam", loss="mse", steps_per_execution=50)
    history = model.fit(*data, epochs=2, shuffle=False, verbose=0, **arguments)
    loss, feed = history.history["loss"][-1], strategy.statistics().infeed
    print(
        f"{name:<10} loss {loss:.6f}; {feed.steps} steps in {feed.blocks} blocks, "
        f"{feed.wait_seconds * 1e3:.1f} ms waited for data"
    )
    return loss


losses = [
    train("arrays", (x, y), batch_size=BATCH),
    train("PyDataset", (Rows(),)),
    train("generator", (generator(),), steps_per_epoch=STEPS),
]
if max(losses) - min(losses) > 1e-6:
    sys.exit("the three losses should agree")
