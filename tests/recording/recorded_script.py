"""Trains a model whose run is recorded: `recorded_script.py endless|ends|processes|pipeline`."""

import sys

import millrace

kind, *_ = sys.argv[1:]
if kind in ("processes", "pipeline"):
    millrace.distributed.initialize()

import keras  # noqa: E402
import numpy as np  # noqa: E402


class Ends(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        raise SystemExit(3)


def small(devices):
    with millrace.Strategy(devices).scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)], name="mlp")
    model.compile("sgd", "mse", steps_per_execution=2)
    x = np.ones((32, 4), "float32")
    return model, (x, x[:, :1], 4)


def pipeline():
    x = np.random.default_rng(0).normal(size=(64, 6)).astype("float32")
    with millrace.Strategy().scope():
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((6,))] + [keras.layers.Dense(6) for _ in range(2)])
        model.set_pipeline_stage_assignment([0, 1])
        model.set_pipelining_options(gradient_accumulation_steps_per_replica=4)
        model.compile("sgd", "mse", steps_per_execution=8)
    model.fit(x, x, batch_size=4, shuffle=False, verbose=0)


if kind == "endless":
    model, data = small(1)
    for epochs in (1, 10**6):
        model.fit(*data, epochs, verbose=0)
elif kind == "ends":
    model, data = small(1)
    model.fit(*data, callbacks=[Ends()])
elif kind == "processes":
    model, data = small(None)
    model.fit(*data, shuffle=False, verbose=0)
else:
    pipeline()
