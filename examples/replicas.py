"""Eight devices: a model in one piece as eight replicas, and a pipeline as four.

Every update takes 16 micro-batches: 2 on each of eight replicas, or 4 on each of four. All models
start from the same weights, draw the same dropout and see the same rows, so their losses equal
those of plain Keras on one device. Virtual CPU devices share the processor's threads: this shows
numbers and memory, not speed.
"""

import millrace  # isort: skip - first: it makes JAX the backend of Keras

import sys

import keras
import numpy as np

strategy = millrace.Strategy(devices="cpu:8")  # before anything else uses JAX

EPOCHS, ROWS = (2, 512) if "--small" in sys.argv else (10, 2_048)
MICRO_BATCH, UPDATE = 16, 16  # rows; micro-batches in an update, of all replicas

# Images of 8 x 8 grey values: one picture for each digit, with noise.
random = np.random.default_rng(0)
digits = random.integers(0, 10, ROWS).astype("int32")
pictures = random.random((10, 64), dtype="float32")
images = pictures[digits] + 0.6 * random.standard_normal((ROWS, 64), dtype="float32")


def build():
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(128, "relu"),
            keras.layers.Dropout(0.1),
            keras.layers.Dense(128, "relu"),
            keras.layers.Dense(10, "softmax"),
        ]
    )


def train(model, **optimizer):
    model.compile(
        optimizer=keras.optimizers.SGD(0.1, momentum=0.9, **optimizer),
        loss="sparse_categorical_crossentropy",
        steps_per_execution=2 * UPDATE,  # steps of the data, on any replica
    )
    keras.utils.set_random_seed(1)  # of the order of rows
    history = model.fit(images, digits, batch_size=MICRO_BATCH, epochs=EPOCHS, verbose=0)
    return history.history["loss"]


def print_bytes(name, variables):
    held = dict.fromkeys(strategy.devices, 0)
    for variable in variables:
        for shard in variable.value.addressable_shards:
            held[shard.device] += shard.data.nbytes
    print(f"{name}: at most {max(held.values())} bytes on a device")


with strategy.scope():
    whole = build()  # one replica per device
whole.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=UPDATE // 8)

with strategy.scope():
    pipeline = build()  # one replica per two devices
pipeline.set_pipeline_stage_assignment([0, 0, 1, 1])  # of each layer
pipeline.set_pipelining_options(gradient_accumulation_steps_per_replica=UPDATE // 4)
pipeline.set_replication_options(replicated_optimizer_state_sharding=True)

found = [train(whole), train(pipeline)]
expected = train(build(), gradient_accumulation_steps=UPDATE)  # outside: plain Keras
for epoch, losses in enumerate(zip(*found, expected, strict=True)):
    print(
        "epoch {}: loss {:.7f} of 8 replicas, {:.7f} of 4 pipelines, {:.7f} of plain Keras".format(
            epoch, *losses
        )
    )
print_bytes("optimizer state, whole on each device", whole.optimizer.variables)
print_bytes("optimizer state of each stage, sharded", pipeline.optimizer.variables)

if not all(np.allclose(losses, expected, rtol=1e-6, atol=0) for losses in found):
    sys.exit("the losses should agree to 1e-6")
