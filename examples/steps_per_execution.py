"""`steps_per_execution` makes many steps one call of compiled code.

Plain Keras takes the same option; with JAX it then runs its steps one by one from Python. A
strategy compiles the loop. This example counts the executions, and the calls that they make.
"""

import time

import millrace  # before Keras: it makes JAX the backend
import keras
import numpy as np

x = np.random.default_rng(0).normal(size=(9600, 8)).astype("float32")
y = x.sum(axis=1)

for steps in (1, 10, 100):
    strategy = millrace.Strategy(devices=1)
    with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(8, "relu"), keras.layers.Dense(1)])
    model.compile(optimizer="adam", loss="mse", steps_per_execution=steps)
    model.fit(x, y, verbose=0)  # compiles

    before, begin = strategy.statistics(), time.perf_counter()
    model.fit(x, y, verbose=0)
    seconds, after = time.perf_counter() - begin, strategy.statistics()
    print(
        f"steps_per_execution={steps}: {300 / seconds:,.0f} steps per second, "
        f"{after.executions - before.executions} executions, "
        f"{after.dispatches - before.dispatches} calls of compiled code"
    )
