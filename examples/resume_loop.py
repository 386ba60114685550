"""An own loop that is killed, and continues with the same numbers.

The script runs itself in another process, which is killed in the middle. Then it continues from the
checkpoints of that process, and trains once more without a break.
"""

import millrace  # isort: skip - first: it makes JAX the backend of Keras

import os
import signal
import subprocess
import sys
import tempfile

import keras
import numpy as np

STEPS, ROWS, EVERY = (60, 16, 20) if "--small" in sys.argv else (600, 256, 100)


def train(directory, killed_at=None):
    """Trains a network, and prints and returns the mean loss of each part of the training."""
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
    means = []
    done = millrace.restore_checkpoint(directory, **parts)
    while done < STEPS:
        millrace.repeat(EVERY, step, infeed=infeed)
        done += EVERY
        means.append(float(losses.dequeue().mean()))
        print(f"step {done}: loss {means[-1]:.9f}", flush=True)
        if done == killed_at:
            os.kill(os.getpid(), signal.SIGKILL)  # no handler runs, and nothing is saved
        millrace.save_checkpoint(directory, done, **parts)
    infeed.close()
    return means


if "--train" in sys.argv:
    train(sys.argv[-1], killed_at=2 * EVERY)
with tempfile.TemporaryDirectory() as temporary:
    print("a process that is killed:", flush=True)
    command = [sys.executable, __file__, *sys.argv[1:], "--train", temporary]
    subprocess.run(command, check=False)
    print("continues:")
    resumed = train(temporary)
print("without a break:")
with tempfile.TemporaryDirectory() as temporary:
    whole = train(temporary)
if resumed != whole[1:]:  # after the first checkpoint
    sys.exit("the losses differ")
print("the same losses")
