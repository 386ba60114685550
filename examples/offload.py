"""The optimizer's values in host memory between updates, if the device has such memory.

devices with host memory     offload_weight_update_variables=True
CPU                          an error that says so; None never fails
"""

import argparse

import millrace  # isort: skip  (picks the JAX backend, before Keras does)
import keras
import numpy as np


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="a narrow model, for a quick run")
    width = 32 if parser.parse_args().small else 1024
    random = np.random.default_rng(0)
    x = random.normal(size=(64, width)).astype("float32")

    strategy = millrace.Strategy(devices=1)
    with strategy.scope():
        model = keras.Sequential([keras.Input((width,))])
        for _ in range(4):
            model.add(keras.layers.Dense(width, "relu"))
    model.compile("adam", "mse", steps_per_execution=4)
    options = {"gradient_accumulation_steps_per_replica": 4}
    try:
        model.set_gradient_accumulation_options(**options, offload_weight_update_variables=True)
    except millrace.errors.OptionError as error:
        print(error)
        model.set_gradient_accumulation_options(**options)  # None: if there is such memory
    history = model.fit(x, x, batch_size=16, epochs=2, verbose=0)
    print("loss:", *(f"{loss:.4f}" for loss in history.history["loss"]))
    nbytes: dict[str, int] = {}
    for variable in model.optimizer.variables:
        kind = variable.value.sharding.memory_kind
        nbytes[kind] = nbytes.get(kind, 0) + variable.value.nbytes
    for kind, size in nbytes.items():
        print(f"optimizer: {size:,} bytes in {kind} memory")


if __name__ == "__main__":
    main()
