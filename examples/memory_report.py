"""The memory of training, its use, and changes that would make it fit, before anything runs."""

import millrace  # isort: skip - first: it makes JAX the backend of Keras

import sys

import keras
import numpy as np

ROWS = 4_096
DEPTH = 2 if "--small" in sys.argv else 4
BUDGET = f"{6 * DEPTH}MB"  # required on CPU, and to leave memory free on other devices

strategy = millrace.Strategy(devices=1)
with strategy.scope():
    hidden = [keras.layers.Dense(256, "tanh", name=f"hidden_{k}") for k in range(DEPTH)]
    model = keras.Sequential(
        [keras.Input((64,)), *hidden, keras.layers.Dense(1, name="out")], name="mlp"
    )


def batch(rows):
    """Shape and dtype of x and y; arrays would do as well."""
    return ((rows, 64), "float32"), ((rows, 1), "float32")


model.compile("adam", "mse", steps_per_execution=2)
report = strategy.memory_report(model, batch(ROWS), budget=BUDGET)
print(report)
if not report.changes:
    sys.exit("there should be a change that makes it fit")

# The change with the fewest FLOPs: a quarter of the rows per batch, and four batches per update.
model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=4)
model.compile("adam", "mse", steps_per_execution=8)
report = strategy.memory_report(model, batch(ROWS // 4), budget=BUDGET)
print(f"\nafterwards\n{report.verdict}")
if not report.fits:
    sys.exit("it should fit now")

# The report has compiled the programs of fit.
compiled = len(strategy.compile_log)
x = np.random.default_rng(0).standard_normal((2 * ROWS, 64), dtype="float32")
model.fit(x, x[:, :1], batch_size=ROWS // 4, verbose=0)
print(f"compiled since: {len(strategy.compile_log) - compiled} programs")
