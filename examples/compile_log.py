"""What a training compiles, why it does so again, and how that is forbidden."""

import millrace  # before Keras: it makes JAX the backend
import keras
import numpy as np

x = np.random.default_rng(0).normal(size=(100, 8)).astype("float32")
y = x.sum(axis=1)

strategy = millrace.Strategy(devices=1)
with strategy.scope():
    layers = [keras.layers.Dense(16, "relu", name="hidden"), keras.layers.Dense(1, name="out")]
    model = keras.Sequential([keras.Input((8,)), *layers], name="mlp")
model.compile("sgd", "mse", steps_per_execution=4)
model.fit(x, y, verbose=0)  # the last of four batches has 4 rows

for record in strategy.compile_log:
    print(f"{record.program} for {record.batch}\n  {record.cause}")
    if record.remedy:
        print(f"  {record.remedy}")

with strategy.no_recompile():
    model.optimizer.learning_rate = 0.001  # a value of a variable: nothing is compiled
    model.fit(x, y, verbose=0)
    try:
        model.fit(x[:90], y[:90], verbose=0)
    except millrace.errors.RecompilationError as error:
        print(f"refused: {error}")
