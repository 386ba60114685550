"""Vanishing gradients, found by statistics of every activation and gradient of a stock model.

In a deep model of sigmoids, gradients shrink towards the first layers. The model needs no change to
show that, and one execution is still a whole epoch of steps.
"""

import millrace  # isort: skip - first: it makes JAX the backend of Keras

import sys

import keras
import numpy as np

from millrace.callbacks import TensorStatistics

STEPS = 16 if "--small" in sys.argv else 64
DEPTH = 5

keras.utils.set_random_seed(0)
random = np.random.default_rng(0)
x = random.standard_normal((STEPS * 32, 16), dtype="float32")
y = x[:, :1] * x[:, 1:2]

with millrace.Strategy(devices=1).scope():
    hidden = [keras.layers.Dense(32, "sigmoid", name=f"hidden_{k}") for k in range(DEPTH)]
    model = keras.Sequential([keras.Input((16,)), *hidden, keras.layers.Dense(1, name="out")])
model.compile(optimizer="sgd", loss="mse", steps_per_execution=STEPS)

statistics = TensorStatistics(activations="hidden*", gradients="*/kernel")
model.fit(x, y, batch_size=32, epochs=2, verbose=0, callbacks=[statistics])

print("norm of the gradient, mean over all updates:")
history = statistics.history
for layer in model.layers:
    norms = history["norm"][history["name"] == f"{layer.name}/kernel"]
    print(f"  {layer.name:<10} {norms.mean():.1e}   ({len(norms)} updates)")
