"""Compares Keras and JAX before millrace, with an attached model, and after it was detached.

Prints the names that differ from the registry of patches, and those that are changed at the end.
"""

import sys

import keras
import numpy as np

KINDS = ("keras", "jax._src.array", "jax._src.compilation_cache")
# What Keras and Python note down for themselves.
IGNORED = {"__abstractmethods__", "_abc_impl", "__annotations__", "__doc__", "__builtins__"}
IGNORED |= {"_cache_checked", "_cache_used", "GLOBAL_STATE_TRACKER", "GLOBAL_SETTINGS_TRACKER"}


def places():
    """Returns the values of modules and classes by their places."""
    found = {}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in ("keras", "jax") and name.startswith(KINDS):
            for key, value in list(vars(module).items()):
                found[name, key] = value
                if isinstance(value, type) and value.__module__ == name:
                    found.update({(name, key, k): v for k, v in list(vars(value).items())})
    return found


BEFORE = places()


def changed():
    now = places()
    keys = {key for key, value in BEFORE.items() if now.get(key) is not value}
    keys -= {key for key in keys if len(key) > 2 and key[:2] in keys}  # of a class that is changed
    return {key for key in keys if key[-1] not in IGNORED}


import millrace  # noqa: E402
from millrace._compat.patches import patches_in  # noqa: E402

assert not changed(), changed()
x, y = np.ones((8, 4), "float32"), np.ones((8, 1), "float32")
strategy = millrace.Strategy(devices=1, cache_dir=None)
with strategy.scope():
    inputs = keras.Input((4,))
    model = keras.Model(inputs, keras.layers.Dense(1)(inputs))
model.compile("sgd", "mse", steps_per_execution=2)
watch = millrace.callbacks.TensorStatistics(activations=["*"])
model.fit(x, y, batch_size=2, verbose=0, callbacks=[watch], validation_data=(x, y))
known = {p for p in patches_in() if p.owner is not None}
print(sorted({key[-1] for key in changed()} ^ {p.attribute for p in known}))
strategy.detach(model)
print(sorted(changed()), len(known) > 9)
model.fit(x, y, batch_size=2, verbose=0)
