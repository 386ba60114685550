"""The same rows from arrays, from a PyDataset and from a generator, with equal results."""

import millrace  # before Keras: it makes JAX the backend
import keras
import numpy as np

x = np.random.default_rng(0).normal(size=(1000, 8)).astype("float32")
y = x.sum(axis=1)
STEPS = 32  # of 32 rows; the last batch has 8


class Rows(keras.utils.PyDataset):
    def __len__(self):
        return STEPS

    def __getitem__(self, index):
        rows = slice(index * 32, (index + 1) * 32)
        return x[rows], y[rows]


def endless():  # so fit needs the number of steps per epoch
    while True:
        for begin in range(0, len(x), 32):
            yield x[begin : begin + 32], y[begin : begin + 32]


def train(*data, **arguments):
    keras.utils.set_random_seed(0)
    with millrace.Strategy(devices=1).scope():
        model = keras.Sequential([keras.layers.Dense(8, "relu"), keras.layers.Dense(1)])
    model.compile(optimizer="adam", loss="mse", steps_per_execution=STEPS)
    history = model.fit(*data, epochs=2, shuffle=False, verbose=0, **arguments)
    return history.history["loss"][-1]


losses = train(x, y), train(Rows()), train(endless(), steps_per_epoch=STEPS)
for name, loss in zip(("arrays", "PyDataset", "generator"), losses, strict=True):
    print(f"{name}: loss {loss:.6f}")
print("the same losses:", max(losses) - min(losses) < 1e-6)
