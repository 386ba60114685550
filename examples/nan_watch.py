"""A batch that would ruin the weights: training stops before it and names the faulty tensor."""

import pathlib
import tempfile

import millrace  # isort: skip
import keras
import numpy as np

from millrace.replay import replay

keras.utils.set_random_seed(0)
strategy = millrace.Strategy(devices=1)
with strategy.scope():
    model = keras.Sequential(
        [
            keras.Input((16,)),
            keras.layers.Dense(64, activation="relu", name="hidden"),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(1, activation="exponential", name="rate"),
        ]
    )
model.compile("adam", "poisson", steps_per_execution=50)

x = np.random.default_rng(0).standard_normal((100 * 32, 16)).astype("float32")
y = np.exp(x[:, :1] / 4)
x[73 * 32 + 5] *= 1e4  # one row of 3,200 was recorded in another unit

with tempfile.TemporaryDirectory() as directory:
    watch = millrace.callbacks.NaNWatch(directory=directory)
    model.fit(x, y, shuffle=False, verbose=0, callbacks=[watch])
    print("found:", watch.found)
    print("weights finite:", all(np.isfinite(w).all() for w in model.get_weights()))

    # The same as `millrace replay`: the same update in a model loaded from the directory.
    again = replay(pathlib.Path(watch.written))
    print("went wrong in the same way:", again.repeats)
    micro_batch, tensor, row = again.replay.first_non_finite()
    print(f"first: {tensor} of micro-batch {micro_batch}, largest element {row[3]}")
