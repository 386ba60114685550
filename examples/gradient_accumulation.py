"""Four micro-batches of 8 rows make the same update as one batch of 32.

Both models start from the same weights and see the same rows in the same order. They differ in the
memory of a step, and in the batches that layers such as BatchNormalization see.
"""

import millrace  # isort: skip - first: it makes JAX the backend of Keras

import sys

import keras
import numpy as np

EPOCHS = 1 if "--small" in sys.argv else 5
ROWS = 1_024

random = np.random.default_rng(0)
x = random.standard_normal((ROWS, 16), dtype="float32")
y = np.sin(x.sum(axis=1, keepdims=True))


def train(batch_size, accumulation):
    keras.utils.set_random_seed(0)
    with millrace.Strategy().scope():
        model = keras.Sequential(
            [keras.Input((16,)), keras.layers.Dense(32, "tanh"), keras.layers.Dense(1)]
        )
    # An update must not start in one execution and end in another: 16 is a multiple of 4.
    model.compile(optimizer="adam", loss="mse", steps_per_execution=16)
    model.set_gradient_accumulation_options(
        gradient_accumulation_steps_per_replica=accumulation,
        gradient_accumulation_reduction_method="mean",  # over rows, so that updates agree
    )
    history = model.fit(x, y, batch_size=batch_size, epochs=EPOCHS, shuffle=False, verbose=0)
    loss, updates = history.history["loss"][-1], int(model.optimizer.iterations)
    print(f"batch_size={batch_size:<3} accumulation={accumulation}: loss {loss:.6f}, {updates=}")
    return model.get_weights()


whole = train(batch_size=32, accumulation=1)
parts = train(batch_size=8, accumulation=4)
difference = max(float(np.abs(a - b).max()) for a, b in zip(whole, parts, strict=True))
print(f"largest difference between two weights: {difference:.1e}")
if difference > 1e-4:
    sys.exit("the two models should agree")
