"""A model in two stages on two devices, with the losses of plain Keras.

Both models start from the same weights, draw the same dropout and see the same rows in the same
order; both make one update of every 16 micro-batches. Virtual CPU devices share the processor's
threads, so this shows numbers, not speed.
"""

import millrace  # before Keras: it makes JAX the backend
import keras
import numpy as np

x = np.random.default_rng(0).normal(size=(2048, 64)).astype("float32")
y = np.sin(x.sum(axis=1))


def build():
    keras.utils.set_random_seed(0)
    hidden = keras.layers.Dense(128, "relu"), keras.layers.Dense(128, "relu")
    layers = [hidden[0], keras.layers.Dropout(0.1), hidden[1], keras.layers.Dense(1)]
    return keras.Sequential([keras.Input((64,)), *layers])


def train(model, **options):
    optimizer = keras.optimizers.SGD(0.02, momentum=0.9, **options)
    model.compile(optimizer=optimizer, loss="mse", steps_per_execution=32)
    history = model.fit(x, y, batch_size=16, epochs=3, shuffle=False, verbose=0)
    print("losses:", *(f"{loss:.6f}" for loss in history.history["loss"]))
    return history.history["loss"]


strategy = millrace.Strategy(devices="cpu:2")  # before anything else uses JAX
with strategy.scope():
    model = build()
model.set_pipeline_stage_assignment([0, 0, 1, 1])  # of each layer
model.set_pipelining_options(gradient_accumulation_steps_per_replica=16)
model.print_pipeline_stage_assignment_summary()

losses = train(model)
expected = train(build(), gradient_accumulation_steps=16)  # plain Keras
print("the same losses:", np.allclose(losses, expected, rtol=1e-6))
