"""A `.keras` file saved from a strategy opens in plain Keras, and the other way round.

Weights, optimizer state and compilation are saved as usual. The same file stores the options of the
model; plain Keras skips them.
"""

import millrace  # isort: skip - first: it makes JAX the backend of Keras

import pathlib
import sys
import tempfile

import keras
import numpy as np

EPOCHS = 1 if "--small" in sys.argv else 3

random = np.random.default_rng(0)
x = random.standard_normal((1_280, 8), dtype="float32")
y = x.sum(axis=1, keepdims=True)

strategy = millrace.Strategy()
with strategy.scope():
    model = keras.Sequential(
        [keras.Input((8,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(1)]
    )
model.compile(optimizer="adam", loss="mse", steps_per_execution=40)
model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=4)
model.fit(x, y, batch_size=32, epochs=EPOCHS, verbose=0)
expected = model.predict(x, verbose=0)

with tempfile.TemporaryDirectory() as directory:
    path = pathlib.Path(directory) / "model.keras"
    model.save(path)

    plain = keras.saving.load_model(path)  # outside the scope: a stock model
    print("plain Keras predicts the same:", np.allclose(plain.predict(x, verbose=0), expected))

    with strategy.scope():
        again = keras.saving.load_model(path)  # inside: attached, with its options

before = int(again.optimizer.iterations)
again.fit(x, y, batch_size=32, epochs=1, verbose=0)
updates = int(again.optimizer.iterations) - before
print(f"another epoch of 40 steps: {updates} updates, so the accumulation of 4 was loaded, too")
if updates != 10:
    sys.exit("the options should be saved with the model")
