"""A file saved from a strategy opens in plain Keras, and in a strategy with its options."""

import pathlib
import tempfile

import millrace  # before Keras: it makes JAX the backend
import keras
import numpy as np

x = np.random.default_rng(0).normal(size=(1280, 8)).astype("float32")
y = x.sum(axis=1)

strategy = millrace.Strategy(devices=1)
with strategy.scope():
    model = keras.Sequential([keras.layers.Dense(8, "relu"), keras.layers.Dense(1)])
model.compile(optimizer="adam", loss="mse", steps_per_execution=40)
model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=4)
model.fit(x, y, batch_size=32, epochs=3, verbose=2)

with tempfile.TemporaryDirectory() as directory:
    path = pathlib.Path(directory) / "model.keras"
    model.save(path)
    plain = keras.saving.load_model(path)  # outside the scope: a stock model
    with strategy.scope():
        again = keras.saving.load_model(path)  # inside: attached, with its options

expected = model.predict(x, verbose=0)
print("plain Keras predicts the same:", np.allclose(plain.predict(x, verbose=0), expected))
before = int(again.optimizer.iterations)
again.fit(x, y, batch_size=32, epochs=1, verbose=0)
print("updates in 40 steps:", int(again.optimizer.iterations) - before)
