"""A training that waits for its data, and how its statistics say so."""

import time

import millrace  # before Keras: it makes JAX the backend
import keras
import numpy as np

x = np.random.default_rng(0).normal(size=(32, 8)).astype("float32")


def batches():
    while True:
        time.sleep(0.005)  # as a disk or a network would
        yield x, x.sum(axis=1)


strategy = millrace.Strategy(devices=1)
with strategy.scope():
    model = keras.Sequential([keras.layers.Dense(64, "relu"), keras.layers.Dense(1)], name="mlp")
model.compile(optimizer="adam", loss="mse", steps_per_execution=50)
model.fit(batches(), steps_per_epoch=100, epochs=4, verbose=0)

print(strategy.statistics())
for record in strategy.compile_log:
    print(f"{record.program} of {record.model} for {record.batch}: {record.origin.value}")
