"""One script, alone or as several processes: a pipeline, or replicas with `--replicas`.

    python examples/processes.py                                two devices of one process
    millrace launch --processes 2 examples/processes.py         one device of each process
    millrace launch --processes 2 --devices-per-process 2 ...   two pipelines side by side

Every process runs the whole script: it builds the same model, reads the same data, and makes the
same calls. All of them receive the same losses, predictions and weights, equal to plain Keras's.
"""

import millrace  # isort: skip - first: it makes JAX the backend of Keras

import sys

import jax
import keras
import numpy as np

millrace.distributed.initialize()  # without other processes it does nothing
# The devices of all processes. A single process makes two, before anything else uses JAX.
strategy = millrace.Strategy(devices=None if jax.distributed.is_initialized() else "cpu:2")

EPOCHS, ROWS = (2, 512) if "--small" in sys.argv else (10, 2_048)
MICRO_BATCH, UPDATE = 16, 16  # rows; micro-batches in an update, of all replicas

# `initialize` gives all processes one random seed; set your own after it, in all of them.
random = np.random.default_rng(0)
x = random.standard_normal((ROWS, 32), dtype="float32")
y = np.sin(x.sum(axis=1, keepdims=True))


def build():
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [
            keras.Input((32,)),
            keras.layers.Dense(64, "tanh"),
            keras.layers.Dropout(0.1),
            keras.layers.Dense(64, "tanh"),
            keras.layers.Dense(1),
        ]
    )


def train(model, **optimizer):
    model.compile(
        optimizer=keras.optimizers.SGD(0.02, momentum=0.9, **optimizer),
        loss="mse",
        steps_per_execution=2 * UPDATE,
    )
    keras.utils.set_random_seed(1)  # of the order of rows
    history = model.fit(x, y, batch_size=MICRO_BATCH, epochs=EPOCHS, verbose=0)
    return history.history["loss"]


with strategy.scope():
    model = build()
devices = len(strategy.devices)
if "--replicas" in sys.argv:
    replicas = devices
    model.set_gradient_accumulation_options(
        gradient_accumulation_steps_per_replica=UPDATE // replicas
    )
else:
    replicas = devices // 2
    model.set_pipeline_stage_assignment([0, 0, 1, 1])  # of each layer
    model.set_pipelining_options(gradient_accumulation_steps_per_replica=UPDATE // replicas)

losses = train(model)
predictions = model.predict(x[:256], batch_size=64, verbose=0)
expected = train(build(), gradient_accumulation_steps=UPDATE)  # outside: plain Keras, in each
places = ", ".join(f"device {each.id} of process {each.process_index}" for each in strategy.devices)
print(f"process {jax.process_index()} of {jax.process_count()}: {replicas=} on {places}")
for epoch, (loss, other) in enumerate(zip(losses, expected, strict=True)):
    print(f"epoch {epoch}: loss {loss:.7f}, plain Keras {other:.7f}")
called = np.asarray(model(x[:256]))  # with the weights that this process received
print(f"predict and a call differ by at most {np.abs(predictions - called).max():.1e}")

if not np.allclose(losses, expected, rtol=1e-6, atol=0):
    sys.exit("the losses should agree to 1e-6")
if not np.allclose(predictions, called, rtol=1e-5, atol=1e-5):
    sys.exit("the predictions should match the weights")
