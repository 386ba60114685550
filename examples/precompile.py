"""Everything that training will run, compiled before there is data.

Run it twice: the second process reads the programs from the cache on disk.
"""

import millrace  # before Keras: it makes JAX the backend
import keras
import numpy as np

strategy = millrace.Strategy(devices=1)
with strategy.scope():
    model = keras.Sequential([keras.layers.Dense(64, "relu"), keras.layers.Dense(1)])
model.compile("adam", "mse", steps_per_execution=25)
model.precompile((((32, 8), "float32"), ((32,), "float32")), steps_per_epoch=25)
for record in sorted(strategy.compile_log, key=lambda record: record.program):
    print(f"{record.program}: {record.origin.value} in {record.compile_seconds:.2f} s")

x = np.random.default_rng(0).normal(size=(25 * 32, 8)).astype("float32")
with strategy.no_recompile():  # nothing is left to compile
    model.fit(x, x.sum(axis=1), epochs=2, verbose=0)
print("trained", strategy.statistics().executions, "executions")
