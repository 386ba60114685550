"""How to train within the memory of two devices, before a step runs."""

import millrace  # before Keras: it makes JAX the backend
import keras
import numpy as np

strategy = millrace.Strategy(devices="cpu:2")  # before anything else uses JAX
with strategy.scope():
    hidden = [keras.layers.Dense(128, "relu") for _ in range(3)]
    model = keras.Sequential([keras.Input((32,)), *hidden, keras.layers.Dense(1)], name="mlp")
model.compile("adam", "mse")

x = np.random.default_rng(0).normal(size=(1024, 32)).astype("float32")
y = x.sum(axis=1)

# All rows of one update; how they are divided is the plan's choice.
plan = strategy.plan(model, (x[:256], y[:256]), memory="1GB")
print(plan)
tight = strategy.plan(model, (x[:256], y[:256]), memory=int(0.9 * plan.chosen.peak))
print(f"\nwhat differs with less memory\n{plan.diff(tight)}")

tight.apply()
history = model.fit(x, y, batch_size=tight.batch_size, epochs=2, verbose=0)
print("\nlosses:", *(f"{loss:.4f}" for loss in history.history["loss"]))
