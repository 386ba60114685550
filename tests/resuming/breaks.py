"""Trainings with breaks, compared with one without, to the bit."""

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import layers

import millrace

ROWS, BATCH, STEPS, EPOCHS = 24, 4, 6, 3  # steps: of an epoch
SAVED = 5  # steps between two checkpoints: they lie inside epochs
HERE = Path(__file__).resolve()


class Stop(Exception):  # noqa: N818
    """Stands in for a kill."""


def rows_of(number, seed=1):
    random = np.random.default_rng(seed)
    x = random.normal(size=(number, 5)).astype("float32")
    return x, np.tanh(x[:, :1] * x[:, 1:2]).astype("float32")


X, Y = rows_of(ROWS)
X_VAL, Y_VAL = rows_of(8, seed=2)


def arrays(**changed):
    return {"x": X, "y": Y, "batch_size": BATCH, **changed}


def make(
    optimizer: Callable[[], Any] = lambda: keras.optimizers.Adam(0.01),
    *,
    executed=1,
    width=8,
    depth=1,
    dropout=0.3,
    accumulation=None,
    metrics=(),
    devices=1,
    stages=None,
    norm=True,
):
    """Returns a model with everything that has state: moments, statistics, seeds, metrics."""
    with millrace.Strategy(devices=devices).scope():
        model = keras.Sequential(
            [
                keras.Input((5,)),
                layers.Dense(width, "tanh", name="first"),
                *([layers.BatchNormalization(name="norm")] if norm else []),
                layers.Dropout(dropout, name="drop"),
                *(layers.Dense(width, "tanh", name=f"more_{n}") for n in range(depth)),
                layers.Dense(1, name="last"),
            ],
            name="net",
        )
    model.compile(
        optimizer(),
        "mse",
        metrics=list(metrics),
        steps_per_execution=executed * (accumulation or 1),
    )
    if stages is not None:
        model.set_pipeline_stage_assignment(stages)
        model.set_pipelining_options(gradient_accumulation_steps_per_replica=accumulation)
    elif accumulation is not None:
        model.set_gradient_accumulation_options(
            gradient_accumulation_steps_per_replica=accumulation
        )
    return model


@dataclass
class Run:
    """What one call of `fit` did and left behind."""

    model: Any = None
    callbacks: list = field(default_factory=list)
    rows: dict = field(default_factory=dict)  # (epoch, batch): logs after it
    begun: list = field(default_factory=list)  # (epoch, batch) of each beginning
    epochs_begun: list = field(default_factory=list)
    steps: list = field(default_factory=list)  # what callbacks are told of the epoch's length
    history: dict | None = None
    epochs: list | None = None
    stopped: bool = False

    @property
    def variables(self):
        """Values of weights, statistics, seeds and the optimizer's variables."""
        metrics = {id(v) for v in self.model.metrics_variables}
        held = (*self.model.variables, *self.model.optimizer.variables)
        return [keras.ops.convert_to_numpy(v) for v in held if id(v) not in metrics]

    @property
    def trained(self):
        return len(self.rows)


def watch(run, stop_after, stop_at):
    """Returns a callback without attributes, so that no checkpoint can hold what it has seen.

    Args:
        run: is filled.
        stop_after: batches of this call of fit, after which it raises Stop.
        stop_at: a method of callbacks, and the number of its call that raises Stop.
    """
    place = {"epoch": 0, "begin": 0, "batches": 0}
    calls = {"number": 0}

    def floats(logs):
        return {name: float(value) for name, value in (logs or {}).items()}

    def count(method):
        if stop_at is not None and stop_at[0] == method:
            calls["number"] += 1
            if calls["number"] == stop_at[1]:
                raise Stop

    class Watch(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            count("on_train_begin")

        def on_epoch_begin(self, epoch, logs=None):
            place["epoch"] = epoch
            run.epochs_begun.append(epoch)
            run.steps.append(self.params.get("steps"))
            count("on_epoch_begin")

        def on_train_batch_begin(self, batch, logs=None):
            place["begin"] = batch
            run.begun.append((place["epoch"], batch))

        def on_train_batch_end(self, batch, logs=None):
            run.rows[place["epoch"], batch] = floats(logs)
            place["batches"] += batch - place["begin"] + 1
            if stop_after is not None and place["batches"] >= stop_after:
                raise Stop

        def on_test_batch_end(self, batch, logs=None):
            count("on_test_batch_end")

        def on_epoch_end(self, epoch, logs=None):
            count("on_epoch_end")

        def on_train_end(self, logs=None):
            count("on_train_end")

    return Watch()


def train(
    directory=None,
    *,
    build=make,
    data=arrays,
    callbacks: Callable[[], list] = list,
    stop_after=None,
    stop_at=None,
    seed=7,
    model=None,
    first=False,
    every_steps=SAVED,
    checkpoint=None,
    epochs=EPOCHS,
    **fit,
):
    """Makes everything anew, from the same seeds, and trains.

    Args:
        directory: of checkpoints; without one, nothing is saved.
        model: trains this one instead of a new one.
        first: whether `Checkpoint` comes before the other callbacks.
        checkpoint: further arguments of `Checkpoint`.
    """
    keras.utils.set_random_seed(seed)
    run = Run(model=build() if model is None else model, callbacks=callbacks())
    used = [*run.callbacks, watch(run, stop_after, stop_at)]
    if directory is not None:
        saver = millrace.callbacks.Checkpoint(
            str(directory), every_steps=every_steps, **(checkpoint or {})
        )
        # before `watch`, which would otherwise kill before anything is saved
        used.insert(0 if first else len(run.callbacks), saver)
    try:
        history = run.model.fit(**data(), epochs=epochs, callbacks=used, **{"verbose": 0, **fit})
        run.history, run.epochs = history.history, list(history.epoch)
    except Stop:
        run.stopped = True
    return run


def at_once(**checkpoint):
    """Arguments of `train` with which a checkpoint is there as soon as it was asked for."""
    return {"checkpoint": {"async_save": False, **checkpoint}}


def expect_equal(whole, *parts, all_steps=True):
    """Compares the last part, which ended, with a run without a break, and the others' logs."""
    for part in parts:
        common = set(part.rows) & set(whole.rows)
        if all_steps:
            assert common == set(part.rows), "a step that the run without a break has not got"
        for place in sorted(common):
            assert part.rows[place] == whole.rows[place], f"logs differ at {place}"
    last = parts[-1]
    if all_steps:
        seen = set().union(*(part.rows for part in parts))
        assert seen == set(whole.rows), "steps are missing"
    assert not last.stopped
    assert last.epochs == whole.epochs
    assert last.history == whole.history
    for number, (got, expected) in enumerate(zip(last.variables, whole.variables, strict=True)):
        assert got.dtype == expected.dtype, number
        np.testing.assert_array_equal(got, expected, err_msg=str(number))


def break_and_compare(directory, *breaks, whole=None, all_steps=True, **arguments):
    """Trains without a break, then with breaks after these numbers of batches, and compares."""
    unsaved = {
        n: a for n, a in arguments.items() if n not in ("first", "checkpoint", "every_steps")
    }
    whole = train(**unsaved) if whole is None else whole
    parts = []
    for number in breaks:
        parts.append(train(directory, stop_after=number, **arguments))
        assert parts[-1].stopped
    parts.append(train(directory, **arguments))
    expect_equal(whole, *parts, all_steps=all_steps)
    return whole, parts


def place_of(step):
    return divmod(step, STEPS)


def saved_in(directory):
    """Returns the directories of checkpoints, the oldest first."""
    found = []
    for path in Path(directory).iterdir():
        number = re.search(r"(\d+)\D*$", path.name)
        if path.is_dir() and number and "tmp" not in path.name:
            found.append((int(number[1]), path))
    return [path for _, path in sorted(found)]


def largest_file(directory):
    return max(
        (p for p in Path(directory).rglob("*") if p.is_file()), key=lambda p: p.stat().st_size
    )


class Shuffled(keras.utils.PyDataset):
    """Changes its order after each epoch by itself, as users' data sets do."""

    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.epoch = 0

    def __len__(self):
        return STEPS

    def __getitem__(self, index):
        order = np.random.default_rng(self.epoch).permutation(ROWS)
        rows = order[index * BATCH : (index + 1) * BATCH]
        return X[rows], Y[rows]

    def on_epoch_end(self):
        self.epoch += 1


def digest(run):
    hashed = hashlib.sha256(json.dumps(run.history, sort_keys=True).encode())
    for value in run.variables:
        hashed.update(value.tobytes())
    return hashed.hexdigest()
