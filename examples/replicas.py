"""Eight devices: a model in one piece as eight replicas, and a pipeline of two stages as four.

Every update takes 16 batches: 2 on each of eight replicas, or 4 on each of four. All models start
from the same weights and see the same rows, so their losses equal those of plain Keras on one
device. Virtual CPU devices share the processor's threads: this shows numbers, not speed.
"""

import millrace  # before Keras: it makes JAX the backend
import keras
import numpy as np

x = np.random.default_rng(0).normal(size=(1024, 32)).astype("float32")
y = np.sin(x.sum(axis=1))


def build():
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(64, "tanh"), keras.layers.Dropout(0.1), keras.layers.Dense(1)]
    return keras.Sequential([keras.Input((32,)), *layers])


def train(name, model, **options):
    optimizer = keras.optimizers.SGD(0.02, momentum=0.9, **options)
    model.compile(optimizer=optimizer, loss="mse", steps_per_execution=32)
    history = model.fit(x, y, batch_size=16, epochs=3, shuffle=False, verbose=0)
    print(f"{name}: losses", *(f"{loss:.6f}" for loss in history.history["loss"]))
    return history.history["loss"]


strategy = millrace.Strategy(devices="cpu:8")  # before anything else uses JAX
with strategy.scope():
    whole, pipeline = build(), build()
whole.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=2)
pipeline.set_pipeline_stage_assignment([0, 0, 1])  # of each layer
pipeline.set_pipelining_options(gradient_accumulation_steps_per_replica=4)
pipeline.set_replication_options(replicated_optimizer_state_sharding=True)

found = train("8 replicas", whole), train("4 pipelines", pipeline)
expected = train("plain Keras", build(), gradient_accumulation_steps=16)
print("the same losses:", all(np.allclose(losses, expected, rtol=1e-6) for losses in found))
