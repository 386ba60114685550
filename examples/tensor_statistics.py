"""Vanishing gradients, found by statistics of every gradient of a stock model.

In a deep model of sigmoids, gradients shrink towards the first layers. The model needs no change to
show that, and one execution is still a whole epoch of steps.
"""

import millrace  # before Keras: it makes JAX the backend
import keras
import numpy as np

keras.utils.set_random_seed(0)
x = np.random.default_rng(0).normal(size=(64 * 32, 16)).astype("float32")
y = x[:, :1] * x[:, 1:2]

with millrace.Strategy(devices=1).scope():
    hidden = [keras.layers.Dense(32, "sigmoid", name=f"hidden_{k}") for k in range(5)]
    model = keras.Sequential([keras.Input((16,)), *hidden, keras.layers.Dense(1, name="out")])
model.compile(optimizer="sgd", loss="mse", steps_per_execution=64)

statistics = millrace.callbacks.TensorStatistics(activations="hidden*", gradients="*/kernel")
model.fit(x, y, batch_size=32, epochs=2, verbose=0, callbacks=[statistics])

print("norm of the gradient, mean over all updates:")
history = statistics.history
for layer in model.layers:
    norms = history["norm"][history["name"] == f"{layer.name}/kernel"]
    print(f"  {layer.name:<10} {norms.mean():.1e}   ({len(norms)} updates)")
