"""A training of `breaks.py` that sends itself a signal.

`signalled_fit.py executed every_steps [directory [signal number train|test]]`: the signal comes
at the end of that batch, counted over all epochs. A fit that ends prints the digest of its numbers
and where it has begun.
"""

import os
import signal
import sys

import breaks
import keras

executed, every_steps = map(int, sys.argv[1:3])
directory, name, number, where = [*sys.argv[3:], None, None, None, None][:4]
counts = {"train": 0, "test": 0}


class Signal(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        self.count("train")

    def on_test_batch_end(self, batch, logs=None):
        self.count("test")

    def count(self, kind):
        counts[kind] += 1
        if name and kind == where and counts[kind] == int(number):
            os.kill(os.getpid(), getattr(signal, name))


run = breaks.train(
    directory,
    build=lambda: breaks.make(executed=executed),
    callbacks=lambda: [Signal()],
    every_steps=every_steps,
    validation_data=(breaks.X_VAL, breaks.Y_VAL),
    validation_batch_size=2,
)
if run.history is not None and len(run.epochs) == breaks.EPOCHS:
    print("digest", breaks.digest(run), *(run.begun[0] if run.begun else ()))
