"""A model trains without tracing or compiling, from the executables of another one."""

import tempfile

import millrace  # before Keras: it makes JAX the backend
import keras
import numpy as np

x = np.random.default_rng(0).normal(size=(800, 8)).astype("float32")
y = x.sum(axis=1)


def train(strategy):
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(64, "relu"), keras.layers.Dense(1)])
    model.compile("adam", "mse", steps_per_execution=25)
    history = model.fit(x, y, epochs=2, verbose=0)
    print("losses:", *(f"{loss:.6f}" for loss in history.history["loss"]))
    for record in strategy.compile_log:
        seconds = record.trace_seconds + record.lower_seconds
        print(f"{record.program}: {record.origin.value}, traced in {seconds:.3f} s")
    return model  # its executables are exported as long as it lives


with tempfile.TemporaryDirectory() as directory:
    strategy = millrace.Strategy(devices=1, cache_dir=None)
    model = train(strategy)
    print("files:", strategy.export_executables(directory))

    strategy = millrace.Strategy(devices=1, cache_dir=None)  # as in another process
    print("fit here:", strategy.load_executables(directory))
    train(strategy)
