"""`steps_per_execution` makes many steps one call of compiled code.

Plain Keras takes the same option; with JAX it then runs its steps one by one from Python. A
strategy compiles the loop. This example counts the executions, and the calls that they make.
"""

import millrace  # isort: skip - first: it makes JAX the backend of Keras

import sys
import time

import keras
import numpy as np

ROWS = 3_200 if "--small" in sys.argv else 32_000
BATCH = 32

random = np.random.default_rng(0)
x = random.standard_normal((ROWS, 8), dtype="float32")
y = x.sum(axis=1, keepdims=True)

for steps in (1, 10, 100):
    strategy = millrace.Strategy()
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((8,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(1)]
        )
    model.compile(optimizer="adam", loss="mse", steps_per_execution=steps)
    model.fit(x, y, batch_size=BATCH, verbose=0)  # compiles

    before = strategy.statistics()
    begin = time.perf_counter()
    model.fit(x, y, batch_size=BATCH, verbose=0)
    seconds = time.perf_counter() - begin
    after = strategy.statistics()
    print(
        f"steps_per_execution={steps:<4} {ROWS // BATCH / seconds:8,.0f} steps per second, "
        f"{after.executions - before.executions:5} executions, "
        f"{after.dispatches - before.dispatches:5} calls of compiled code, "
        f"{after.compilations - before.compilations} compilations"
    )
