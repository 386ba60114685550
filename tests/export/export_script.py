"""Trains a small model, whose executables it exports to a directory or loads from there.

`export_script.py directory export|load offset` prints the losses, the number of executables
exported or loaded, and the origin of each. Another offset is another model.
"""

import json
import sys

import keras
import numpy as np

import millrace

directory, loads, offset = sys.argv[1], sys.argv[2] == "load", float(sys.argv[3])


class Shifted(keras.layers.Layer):
    def call(self, x):
        return x + offset


keras.utils.set_random_seed(0)
strategy = millrace.Strategy(devices=1)
count = strategy.load_executables(directory) if loads else 0
with strategy.scope():
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4, "tanh"), Shifted()])
model.compile("adam", "mse", steps_per_execution=4)
x = np.random.RandomState(0).rand(32, 8).astype("float32")
losses = model.fit(x, x[:, :4], batch_size=8, epochs=2, verbose=0).history["loss"]
if not loads:
    count = strategy.export_executables(directory)
print(json.dumps([losses, count, [r.origin.value for r in strategy.compile_log]]))
