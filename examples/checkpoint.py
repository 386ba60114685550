"""A training that is interrupted, and continues from a checkpoint with the same losses."""

import argparse
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

import millrace  # isort: skip
import keras
import numpy as np


def train(directory: pathlib.Path, rows: int, stops_at: int | None = None) -> list[float]:
    """Trains a small network, and returns the loss of each epoch.

    Args:
        directory: of the checkpoints.
        rows: of the data.
        stops_at: the batch of epoch 2 after which the process is told to end.
    """
    keras.utils.set_random_seed(0)
    with millrace.Strategy(devices=1).scope():
        model = keras.Sequential(
            [keras.layers.Dense(64, "relu"), keras.layers.Dropout(0.2), keras.layers.Dense(1)]
        )
    model.compile("adam", "mse")
    x = np.random.default_rng(0).standard_normal((rows, 16)).astype("float32")
    y = x.sum(axis=1, keepdims=True)

    def preempt(batch: int, logs: dict[str, float]) -> None:
        if len(model.history.epoch) == 1 and batch == stops_at:
            os.kill(os.getpid(), signal.SIGTERM)  # as a cluster does

    history = model.fit(
        x,
        y,
        batch_size=32,
        epochs=4,
        verbose=0,
        callbacks=[
            keras.callbacks.LambdaCallback(on_train_batch_end=preempt),
            millrace.callbacks.Checkpoint(directory, every_steps=100),
        ],
    )
    return history.history["loss"]


def main() -> None:
    """Trains without a break, and with one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--stops-in", help=argparse.SUPPRESS)
    options = parser.parse_args()
    rows = 2_000 if options.small else 20_000
    if options.stops_in:
        train(pathlib.Path(options.stops_in), rows, stops_at=rows // 64)
        return
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        whole = train(directory / "whole", rows)
        print("without a break:", *(f"{loss:.6f}" for loss in whole))

        # Another process receives SIGTERM in the middle of its second epoch.
        broken = directory / "broken"
        command = [sys.executable, __file__, "--stops-in", str(broken)]
        status = subprocess.run(command + ["--small"] * options.small, check=False).returncode
        print("the interrupted process ends with status", status)

        # The same again, in this process: it continues from there.
        resumed = train(broken, rows)
        print("with a break:   ", *(f"{loss:.6f}" for loss in resumed))
        print("the same losses:", resumed == whole)
        if resumed != whole:
            sys.exit("They differ.")


if __name__ == "__main__":
    main()
