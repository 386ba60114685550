"""Batches of 512 rows, computed 64 rows at a time: the same losses in less memory."""

import millrace  # isort: skip - first: it makes JAX the backend of Keras

import sys

import keras
import numpy as np

ROWS, EPOCHS = (1024, 1) if "--small" in sys.argv else (8192, 5)

random = np.random.default_rng(0)
x = random.standard_normal((ROWS, 16), dtype="float32")
y = np.sin(x.sum(axis=1, keepdims=True))


def train(micro_batch):
    keras.utils.set_random_seed(0)
    strategy = millrace.Strategy(devices=1)
    with strategy.scope():
        hidden = [keras.layers.Dense(64, "tanh") for _ in range(6)]
        model = keras.Sequential([keras.Input((16,)), *hidden, keras.layers.Dense(1)])
    model.compile(optimizer="adam", loss="mse")
    model.set_gradient_accumulation_options(micro_batch=micro_batch)
    history = model.fit(x, y, batch_size=512, epochs=EPOCHS, shuffle=False, verbose=0)
    peak = strategy.memory_report(model, (x[:512], y[:512])).peak
    loss = history.history["loss"][-1]
    print(f"micro_batch={micro_batch!r:<8} loss {loss:.6f}, {peak:,} bytes")
    return loss


if abs(train("whole") - train(64)) > 1e-4:
    sys.exit("the losses should agree")
