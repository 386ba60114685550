"""One plan for everything: how to train within the memory of a device, before a step runs."""

import millrace  # isort: skip - first: it makes JAX the backend of Keras

import pathlib
import sys
import tempfile

import keras
import numpy as np

SMALL = "--small" in sys.argv
ROWS, DEPTH = (256, 3) if SMALL else (1024, 6)

strategy = millrace.Strategy(devices="cpu:2" if SMALL else "cpu:4")
with strategy.scope():
    hidden = [keras.layers.Dense(128, "relu") for _ in range(DEPTH)]
    model = keras.Sequential([keras.Input((32,)), *hidden, keras.layers.Dense(1)], name="mlp")
model.compile("adam", "mse")

x = np.random.default_rng(0).standard_normal((4 * ROWS, 32), dtype="float32")
y = x[:, :1]

# All rows of one update; how they are divided is the plan's choice.
plan = strategy.plan(model, (x[:ROWS], y[:ROWS]), memory="1GB")
print(plan)

tight = strategy.plan(model, (x[:ROWS], y[:ROWS]), memory=int(0.8 * plan.chosen.peak))
print(f"\nwith less memory\n{tight}")
print(f"\nwhat differs\n{plan.diff(tight)}")

tight.apply()
history = model.fit(x, y, batch_size=tight.batch_size, epochs=2, verbose=0).history
print(f"\nlosses {history['loss']}")

path = pathlib.Path(tempfile.mkdtemp()) / "plan.json"
tight.save(path)
again = millrace.TrainingPlan.load(path)
if again != tight:
    sys.exit("a plan should be the same once loaded")
again.apply(model=model)
