"""An own loop that is killed, and goes on with the same numbers.

The script runs itself three times in other processes: once without a break, once until it is
killed in the middle, and once more with the checkpoints of the killed one.
"""

import millrace  # isort: skip - first: it makes JAX the backend of Keras

import os
import pathlib
import signal
import subprocess
import sys
import tempfile

import keras
import numpy as np

STEPS, ROWS, EVERY = (60, 16, 20) if "--small" in sys.argv else (600, 256, 100)


def train(directory, killed_at):
    """Trains a network, and prints the loss of each part of the training."""
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(32, "relu"), keras.layers.Dropout(0.5), keras.layers.Dense(1)]
    model, optimizer = keras.Sequential([keras.Input((4,)), *layers]), keras.optimizers.Adam(0.01)

    def batches():
        random = np.random.default_rng(0)
        while True:
            x = random.standard_normal((ROWS, 4), np.float32)
            yield x, x.sum(axis=1, keepdims=True)

    infeed, losses = millrace.InfeedQueue(batches), millrace.OutfeedQueue()

    def step(x, y):
        weights = model.trainable_variables
        loss, gradients = millrace.value_and_grad(
            lambda: keras.ops.mean((model(x, training=True) - y) ** 2), weights
        )
        optimizer.apply(gradients, weights)
        losses.enqueue(loss)

    parts = {"model": model, "optimizer": optimizer, "infeed": infeed}
    done = millrace.restore_checkpoint(directory, **parts)
    while done < STEPS:
        millrace.repeat(EVERY, step, infeed=infeed)
        done += EVERY
        print(f"step {done}: loss {losses.dequeue().mean():.9f}", flush=True)
        if done == killed_at:
            os.kill(os.getpid(), signal.SIGKILL)  # no handler runs, and nothing is saved
        millrace.save_checkpoint(directory, done, **parts)
    infeed.close()


def run(directory, killed_at=0):
    """Runs this script in another process, and returns the lines that it prints."""
    command = [sys.executable, __file__, *sys.argv[1:], "--train", directory, str(killed_at)]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False).stdout.split("\n")


if "--train" in sys.argv:
    train(sys.argv[-2], int(sys.argv[-1]))
else:
    with tempfile.TemporaryDirectory() as temporary:
        killed = str(pathlib.Path(temporary) / "killed")
        whole = run(str(pathlib.Path(temporary) / "whole"))
        first, rest = run(killed, killed_at=2 * EVERY), run(killed)
    print(*whole[:-1], "killed and run again:", *first[:-1], *rest[:-1], sep="\n")
    assert rest[:-1] == whole[1:-1]  # goes on from the first checkpoint
    assert first[:-1] == whole[:2]
    print("the same losses")
