"""The optimizer's values in host memory between updates, if the device has such memory."""

import millrace  # before Keras: it makes JAX the backend
import keras
import numpy as np

x = np.random.default_rng(0).normal(size=(64, 32)).astype("float32")
with millrace.Strategy(devices=1).scope():
    model = keras.Sequential([keras.layers.Dense(32, "relu") for _ in range(4)])
model.compile("adam", "mse", steps_per_execution=4)
try:
    model.set_gradient_accumulation_options(
        gradient_accumulation_steps_per_replica=4, offload_weight_update_variables=True
    )
except millrace.errors.OptionError as error:  # a CPU has one memory
    print(error)
    # The default: offload if there is such memory.
    model.set_gradient_accumulation_options(
        gradient_accumulation_steps_per_replica=4, offload_weight_update_variables="auto"
    )
history = model.fit(x, x, batch_size=16, epochs=2, verbose=0)
print("losses:", *(f"{loss:.4f}" for loss in history.history["loss"]))
kinds = {variable.value.sharding.memory_kind for variable in model.optimizer.variables}
print("the optimizer's values are in", *sorted(kinds))
