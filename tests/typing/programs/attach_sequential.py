"""A Sequential: completion and checks of everything that attachment adds, and of Keras's own."""

from typing import assert_type

import keras

import millrace

strategy = millrace.Strategy(devices="cpu:2")
with strategy.scope():
    model = strategy.attach(keras.Sequential([keras.layers.Dense(2), keras.layers.Dense(1)]))

assert_type(model, millrace.Attached)
model.compile(optimizer="adam", loss="mse", steps_per_execution=8)
model.fit(epochs=2)
model.fit(epoch=2)  # pyright: ignore[reportCallIssue]
assert_type(model.set_infeed_queue_options(prefetch_depth=3), None)
model.set_infeed_queue_options(prefetch_dept=3)  # pyright: ignore[reportCallIssue]
model.add(keras.layers.Dense(1))
