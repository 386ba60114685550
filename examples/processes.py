"""One script, alone or as several processes: a pipeline of two stages.

    python examples/processes.py                              two devices of one process
    millrace launch --processes 2 examples/processes.py       a stage in each process

Every process runs the whole script: it builds the same model, reads the same data, and makes the
same calls. All of them receive the same losses, predictions and weights.
"""

import millrace  # before Keras: it makes JAX the backend
import jax
import keras
import numpy as np

millrace.distributed.initialize()  # before anything uses JAX; alone it does nothing
# The devices of all processes. A single process makes two.
strategy = millrace.Strategy(devices=None if jax.distributed.is_initialized() else "cpu:2")

keras.utils.set_random_seed(0)  # the same in all processes
with strategy.scope():
    hidden = [keras.layers.Dense(64, "tanh") for _ in range(3)]
    model = keras.Sequential([*hidden, keras.layers.Dense(1)])
model.set_pipeline_stage_assignment([0, 0, 1, 1])  # of each layer
model.set_pipelining_options(gradient_accumulation_steps_per_replica=16)
model.compile(keras.optimizers.SGD(0.02, momentum=0.9), "mse", steps_per_execution=32)

x = np.random.default_rng(0).normal(size=(1024, 32)).astype("float32")
history = model.fit(x, np.sin(x.sum(axis=1)), batch_size=16, epochs=2, verbose=0)

places = ", ".join(f"device {each.id} of process {each.process_index}" for each in strategy.devices)
print(f"process {jax.process_index()} of {jax.process_count()}, stages on {places}")
for epoch, loss in enumerate(history.history["loss"]):
    print(f"epoch {epoch}: loss {loss:.7f}")
called = np.asarray(model(x))  # with the weights that this process received
print("predict is as a call:", np.allclose(model.predict(x, verbose=0), called, atol=1e-5))
