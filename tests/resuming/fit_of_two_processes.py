"""A training of two processes that continues where it was, and in which one may get a signal.

`fit_of_two_processes.py replicas|stages directory where signal [apart]`: process 1 sends itself the
signal after that many executions, once; "none" stands for no checkpoints, or no signal. With
"apart", each process has a directory of its own. The first process prints a RESULT.
"""

import json
import os
import signal
import sys
import time
import zlib

import millrace

millrace.distributed.initialize()

import jax  # noqa: E402
import keras  # noqa: E402
import numpy as np  # noqa: E402

kind, directory, where, name, *apart = sys.argv[1:]
if apart:
    directory = f"{directory}-{jax.process_index()}"
keras.utils.set_random_seed(1)
strategy = millrace.Strategy()
with strategy.scope():
    model = keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(16, "relu"),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(16),
            keras.layers.Dense(1),
        ]
    )
model.compile("adam", "mse", steps_per_execution=4)
if kind == "stages":
    model.set_pipeline_stage_assignment([0, 0, 1, 1])
    model.set_pipelining_options(gradient_accumulation_steps_per_replica=4)


class Fault(keras.callbacks.Callback):
    """Sends a signal to process 1, in the first process of that number only."""

    executions = 0

    def on_train_batch_end(self, batch, logs=None):
        self.executions += 1
        mark = os.path.join(directory, "..", "done")
        due = where != "none" and self.executions == int(where) and jax.process_index() == 1
        if due and not os.path.exists(mark):
            open(mark, "w").close()
            os.kill(os.getpid(), getattr(signal, name))
            time.sleep(0.5)


callbacks = [Fault()]
if directory != "none":
    callbacks.append(millrace.callbacks.Checkpoint(directory, every_steps=12, async_save=False))
x = np.random.default_rng(0).standard_normal((320, 8)).astype("float32")
y = x.sum(1, keepdims=True)
history = model.fit(x, y, epochs=3, batch_size=8, callbacks=callbacks, verbose=0)
if jax.process_index() == 0:
    crc = [zlib.crc32(np.ascontiguousarray(w)) for w in model.get_weights()]
    print("RESULT", json.dumps([history.history, crc]))
