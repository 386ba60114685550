"""Trains with a cache on disk: `cached_fit.py {options of the strategy, as JSON}`.

Prints the losses, the numbers of programs read from the cache and written to it, and the warnings.
"""

import json
import logging
import sys
import warnings

import jax
import keras
import numpy as np

import millrace

events, lines = [], []
handler = logging.Handler(logging.WARNING)
handler.emit = lambda record: lines.append(record.getMessage())
logging.getLogger("millrace").addHandler(handler)
jax.monitoring.register_event_listener(lambda event, **_: events.append(event.split("/")[-1]))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    strategy = millrace.Strategy(devices=1, **json.loads(sys.argv[1]))
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(1)])
    model.compile("adam", "mse", steps_per_execution=4)
    x = np.random.rand(32, 8).astype("float32")
    losses = model.fit(x, x[:, :1], batch_size=8, epochs=2, verbose=0).history["loss"]
of_jax = [str(w.message) for w in caught if "compilation cache" in str(w.message)]
print(
    json.dumps(
        {
            "losses": losses,
            "hits": events.count("cache_hits"),
            "written": events.count("cache_misses"),
            "warnings": lines + of_jax,
        }
    )
)
