"""Trains models over two processes of two devices each, and compares with one device.

Run by `test_processes.py` under `millrace launch`. Each process also trains on a device of its own
and compares.
"""

import sys
import time

import millrace

millrace.distributed.initialize()

import jax  # noqa: E402
import keras  # noqa: E402
import numpy as np  # noqa: E402
from keras import layers  # noqa: E402

ROWS, BATCH = 4 * 19 + 2, 4  # a last update that is short, and a last batch of two rows
random = np.random.default_rng(0)
X = random.normal(size=(ROWS, 6)).astype("float32")
Y = random.normal(size=(ROWS, 3)).astype("float32")


def plain():
    return keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(8, "tanh"),
            layers.Dropout(0.3),
            layers.Dense(8, "tanh"),
            layers.Dense(3),
        ]
    )


def tied():
    """One layer at both ends."""
    inputs = keras.Input((6,))
    ends = layers.Dense(6, "tanh")
    x = layers.Dropout(0.3)(ends(inputs))
    x = ends(layers.Dense(6)(x))
    return keras.Model(inputs, layers.Dense(3)(x))


def train(devices, build=plain, steps=8, stages=None, optimizer=None, **options):
    """Returns everything that a user sees of a training."""
    keras.utils.set_random_seed(1)
    with millrace.Strategy(devices=devices).scope():
        model = build()
    optimizer = optimizer or keras.optimizers.Adam(0.01, global_clipnorm=1.0)
    model.compile(optimizer, "mse", metrics=["mae"], steps_per_execution=16)
    replication = {k: options.pop(k) for k in list(options) if k.startswith("replicated")}
    if stages:
        calls = model.get_pipeline_stage_assignment()
        for call, stage in zip(calls, stages, strict=True):
            call.pipeline_stage = stage
        model.set_pipeline_stage_assignment(calls)
        model.set_pipelining_options(gradient_accumulation_steps_per_replica=steps, **options)
    else:
        model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=steps)
    model.set_replication_options(**replication)
    history = model.fit(
        X, Y, batch_size=BATCH, epochs=2, verbose=0, validation_data=(X[:30], Y[:30])
    ).history
    return {
        "weights": model.get_weights(),
        "optimizer": [np.asarray(v.value) for v in model.optimizer.variables],
        "history": [np.asarray(values) for values in history.values()],
        "evaluate": [np.asarray(model.evaluate(X, Y, batch_size=BATCH, verbose=0))],
        "predict": [model.predict(X, batch_size=BATCH, verbose=0)],
        "call": [np.asarray(model(X[:3]))],
    }


ONE = [jax.local_devices()[0]]
a, b, c, d = jax.devices()  # a and b in process 0, c and d in process 1
FOUR = (0, 0, 1, 1)
SHARD = {"replicated_optimizer_state_sharding": True, "replicated_weight_sharding": True}
sgd = lambda: keras.optimizers.SGD(0.05, momentum=0.9)  # noqa: E731
scaled = lambda: keras.optimizers.LossScaleOptimizer(sgd())  # noqa: E731
CASES = {
    "replicas over processes": ([a, c], {"steps": 4}),
    "replicas within and over processes": ([a, b, c, d], {"steps": 2}),
    "replicas that share out state and weights": ([a, c], {"steps": 4, **SHARD}),
    "a pipeline over processes": ([a, c], {"steps": 8, "stages": FOUR}),
    "zero_bubble": ([a, c], {"stages": FOUR, "pipeline_schedule": "zero_bubble"}),
    "gpipe": ([a, c], {"stages": FOUR, "pipeline_schedule": "gpipe"}),
    "four stages": ([a, c, b, d], {"stages": (0, 1, 2, 3)}),
    "stages of a process that are not neighbours": (
        [a, c], {"stages": (0, 1, 2, 3), "device_mapping": [0, 1, 0, 1]},
    ),
    "replicas of pipelines, each in a process": ([a, b, c, d], {"steps": 4, "stages": FOUR}),
    "a process for each stage of two replicas": ([a, c, b, d], {"steps": 4, "stages": FOUR}),
    "stages that cross in both directions": ([a, c, d, b], {"steps": 4, "stages": FOUR}),
    "pipelines that share out": ([a, c, d, b], {"steps": 4, "stages": FOUR, **SHARD}),
    "tied weights": ([a, c], {"build": tied, "stages": (0, 0, 0, 1, 1)}),
    "tied weights of replicas": (
        [a, c, d, b], {"build": tied, "steps": 4, "stages": (0, 0, 0, 1, 1)},
    ),
    "loss scaling": ([a, c], {"stages": FOUR, "optimizer": scaled}),
    "loss scaling of replicas": ([a, c, d, b], {"steps": 4, "stages": FOUR, "optimizer": scaled}),
    "momentum": ([a, c], {"stages": FOUR, "optimizer": sgd}),
}  # fmt: skip


def compare(name, devices, options):
    begin = time.perf_counter()
    make = options.pop("optimizer", None)
    alone = {key: options[key] for key in ("build",) if key in options}
    expected = train(ONE, optimizer=make and make(), **alone)
    found = train(devices, optimizer=make and make(), **options)
    for what, values in expected.items():
        for got, value in zip(found[what], values, strict=True):
            np.testing.assert_allclose(got, value, rtol=1e-6, atol=1e-6, err_msg=f"{name}: {what}")
    print(f"same: {name} ({time.perf_counter() - begin:.0f} s)", flush=True)


for case in sys.argv[1:] or CASES:
    compare(case, *CASES[case])
