"""Trainings of a few seconds, of every kind, that are killed and started again."""

import contextlib
import hashlib
import os
import time
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from keras import layers

import millrace
import millrace.callbacks

ROWS, BATCH = 96, 4


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of training."""

    executed: int = 1  # steps per execution
    accumulation: int | None = None
    devices: int = 1
    stages: bool = False
    asynchronous: bool = False
    resident: bool = True
    generator: bool = False
    every_steps: int = 5
    async_save: bool = True


KINDS = {
    "one piece": Kind(every_steps=2),
    "saved in the loop": Kind(async_save=False),
    "eight steps": Kind(executed=8, every_steps=8),
    "eight steps, saved in the loop": Kind(executed=8, every_steps=8, async_save=False),
    "accumulation": Kind(executed=4, accumulation=4),
    "two replicas": Kind(devices=2, executed=2),
    "pipeline": Kind(devices=2, stages=True, accumulation=4, executed=8, every_steps=8),
    "asynchronous with taps": Kind(asynchronous=True, executed=4),
    "asynchronous, one step": Kind(asynchronous=True, async_save=False),
    "streamed": Kind(resident=False, executed=4),
    "generator": Kind(generator=True, every_steps=3),
    "generator, eight steps": Kind(generator=True, executed=8, async_save=False),
}


def make(kind: Kind) -> Any:
    with millrace.Strategy(devices=kind.devices).scope():
        model = keras.Sequential(
            [
                keras.Input((5,)),
                layers.Dense(8, "tanh", name="first"),
                layers.BatchNormalization(name="norm"),
                layers.Dropout(0.2, name="drop"),
                layers.Dense(1, name="last"),
            ],
            name="net",
        )
    model.compile(keras.optimizers.Adam(0.01), "mse", steps_per_execution=kind.executed)
    if kind.stages:
        model.set_pipeline_stage_assignment([0, 0, 1, 1])
        model.set_pipelining_options(gradient_accumulation_steps_per_replica=kind.accumulation)
    elif kind.accumulation:
        model.set_gradient_accumulation_options(
            gradient_accumulation_steps_per_replica=kind.accumulation
        )
    if not kind.resident:
        model.set_infeed_queue_options(max_resident_bytes=0)
    if kind.asynchronous:
        model.set_asynchronous_callbacks(True)
    return model


def data(kind: Kind) -> dict[str, Any]:
    random = np.random.default_rng(1)
    x = random.normal(size=(ROWS, 5)).astype("float32")
    y = np.tanh(x[:, :1] * x[:, 1:2])
    if not kind.generator:
        return {"x": x, "y": y, "batch_size": BATCH}

    def batches():
        rows = np.random.default_rng(2)
        while True:
            chosen = rows.integers(0, ROWS, BATCH)
            yield x[chosen], y[chosen]

    return {"x": batches(), "steps_per_epoch": ROWS // BATCH}


def log_to(descriptor: int, pace: float) -> keras.callbacks.Callback:
    """Returns a callback that writes epoch, step and loss, and then waits for `pace` seconds.

    It has no attributes, so that no checkpoint holds what it has done.
    """
    place = {"epoch": 0}

    class Log(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            place["epoch"] = epoch

        def on_train_batch_end(self, batch, logs=None):
            loss = float((logs or {})["loss"]).hex()
            os.write(descriptor, f"{place['epoch']} {batch} {loss}\n".encode())
            time.sleep(pace)

    return Log()


def fit(
    path: str | None,
    *,
    kind: str = "one piece",
    epochs: int = 3,
    log: int | None = None,
    pace: float = 0.0,
    keep: int | None = 3,
    async_save: bool | None = None,
) -> str:
    """Trains, from the newest checkpoint in a directory; returns a digest of all variables."""
    chosen = KINDS[kind]
    keras.utils.set_random_seed(7)
    model = make(chosen)
    callbacks = []
    if chosen.asynchronous and chosen.executed > 1:
        callbacks.append(millrace.callbacks.TensorStatistics("*", gradients="*/kernel"))
    if log is not None:
        callbacks.append(log_to(log, pace))
    if path is not None:
        in_thread = chosen.async_save if async_save is None else async_save
        callbacks.append(
            millrace.callbacks.Checkpoint(
                path, every_steps=chosen.every_steps, keep=keep, async_save=in_thread
            )
        )
    with contextlib.redirect_stdout(None):
        model.fit(**data(chosen), epochs=epochs, callbacks=callbacks, verbose=0)
    text = hashlib.sha256()
    metrics = {id(variable) for variable in model.metrics_variables}
    for variable in (*model.variables, *model.optimizer.variables):
        if id(variable) not in metrics:
            text.update(np.asarray(variable.value).tobytes())
    return text.hexdigest()
