"""Runs a model and a function twice, of which the second is warm: `... [PRE_COMPILE]`.

The log has WARM between the two.
"""

import json
import sys

import keras
import numpy as np

import millrace
from millrace_ipu import ipu

config = ipu.config.IPUConfig()
config.auto_select_ipus = 1
if "PRE_COMPILE" in sys.argv:
    config.device_connection.type = ipu.config.DeviceConnectionType.PRE_COMPILE
config.configure_ipu_system()
strategy = ipu.ipu_strategy.IPUStrategy()


@millrace.compile
def double(x):
    return 2 * x


keras.utils.set_random_seed(0)
x = np.ones((8, 4), np.float32)


def run(model):
    losses = model.fit(x, x[:, :1], batch_size=4, epochs=2, verbose=0).history["loss"]
    return losses, np.asarray(strategy.run(double, [x])).sum().item()


with strategy.scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", steps_per_execution=2)
    result = run(model)
    print("WARM", file=sys.stderr, flush=True)
    run(model)
origins = [each.origin.value for each in strategy.compile_log if each.is_executable]
print(json.dumps({"result": result, "origins": origins}))
