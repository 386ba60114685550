"""A model of which Keras does not say what it is: the check at run time is one for pyright, too."""

from typing import assert_type

import keras

import millrace

strategy = millrace.Strategy()
with strategy.scope():
    model = keras.saving.load_model("model.keras")
assert isinstance(model, millrace.Attached)

assert_type(model, millrace.Attached)
model.set_asynchronous_callbacks(True, stop_within=4)
model.set_asynchronous_callbacks(True, 4)  # pyright: ignore[reportCallIssue]
model.evaluate(steps=4)

with strategy.scope():
    clone = strategy.attach(keras.models.clone_model(model))
clone.set_asynchronous_callbacks("on")  # pyright: ignore[reportArgumentType]
