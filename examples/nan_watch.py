"""A batch that would ruin the weights: training stops before it and names the faulty tensor."""

import tempfile

import millrace  # before Keras: it makes JAX the backend
import keras
import numpy as np

keras.utils.set_random_seed(0)
layers = [
    keras.layers.Dense(64, activation="relu", name="hidden"),
    keras.layers.Dense(1, activation="exponential", name="rate"),
]
with millrace.Strategy(devices=1).scope():
    model = keras.Sequential([keras.Input((16,)), *layers])
model.compile("adam", "poisson", steps_per_execution=50)

x = np.random.default_rng(0).normal(size=(100 * 32, 16)).astype("float32")
y = np.exp(x[:, :1] / 4)
x[73 * 32 + 5] *= 1e4  # one row of 3,200 was recorded in another unit

with tempfile.TemporaryDirectory() as directory:
    watch = millrace.callbacks.NaNWatch(directory=directory)
    model.fit(x, y, shuffle=False, verbose=0, callbacks=[watch])
    print("found:", watch.found)
    print("weights finite:", all(np.isfinite(weight).all() for weight in model.get_weights()))

    # The batch and the model from before it, to look at in plain NumPy and Keras.
    batch = np.load(watch.written / "batches.npz")["0/x"]
    again = keras.models.load_model(watch.written / "model.keras")
    hidden = keras.Model(again.inputs[0], again.get_layer("hidden").output)(batch)
    largest = np.asarray(hidden).max(axis=1)
    print(f"row {largest.argmax()} of the batch has {largest.max():.0f} in the hidden layer,")
    print(f"the others at most {np.sort(largest)[-2]:.1f}")
