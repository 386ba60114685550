"""A pipeline that one process compiles, with the argument `ahead`, and that another one trains."""

import json
import sys

import millrace  # isort: skip - it makes JAX the backend of Keras
import keras
import numpy as np

strategy = millrace.Strategy("cpu:2")
inputs = keras.Input((8,))
with strategy.scope():
    with millrace.PipelineStage(0):
        hidden = keras.layers.Dense(6, "relu")(inputs)
    with millrace.PipelineStage(1):
        outputs = keras.layers.Dense(1)(hidden)
    model = keras.Model(inputs, outputs)
model.compile("adam", "mse", steps_per_execution=8)
model.set_pipelining_options(gradient_accumulation_steps_per_replica=4)
if "ahead" in sys.argv:
    model.precompile((((4, 8), "float32"), ((4, 1), "float32")))
else:
    x = np.ones((96, 8), "float32")
    model.fit(x, x[:, :1], batch_size=4, verbose=0)
    model.predict(x, batch_size=4, verbose=0)
print(json.dumps([each.origin.value for each in strategy.compile_log if each.is_executable]))
