"""Prints the peak of this process's memory, and the bytes of a read: `peak_script.py kind steps`.

Of kind "queue", a queue gets the gradients of each step, and is read at the end of each epoch.
"""

import pathlib
import sys

import keras
import numpy as np

import millrace

kind, steps, read = sys.argv[1], int(sys.argv[2]), []
model = keras.Sequential(
    [keras.Input((784,)), keras.layers.Dense(128, "relu"), keras.layers.Dense(10)]
)
millrace.Strategy(devices=1).attach(model)
optimizer = keras.optimizers.SGD(0.01)
if kind == "queue":
    queue = millrace.MaybeOutfeedQueue()
    optimizer = millrace.optimizers.OutfeedOptimizer(optimizer, queue, model=model)


class Read(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        read.append(sum(value.nbytes for value in queue.dequeue().values()))


model.compile(optimizer, "mse", steps_per_execution=steps)
x, y = np.ones((steps * 32, 784), "float32"), np.ones((steps * 32, 10), "float32")
model.fit(x, y, batch_size=32, epochs=3, verbose=0, callbacks=[Read()] * (kind == "queue"))
status = pathlib.Path("/proc/self/status").read_text()
print(int(status.split("VmHWM:")[1].split()[0]) * 1024, max(read, default=0))
