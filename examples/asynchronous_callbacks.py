"""Callbacks for every step, with a whole epoch as one execution."""

import time

import millrace  # before Keras: it makes JAX the backend
import keras
import numpy as np

WIDTH = 1024  # slow enough to watch
x = np.random.default_rng(0).normal(size=(32 * 128, WIDTH)).astype("float32")


class PrintLoss(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.epoch, self.begin = epoch, time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        if self.epoch == 1 and batch % 8 == 7:  # the first epoch compiles
            seconds = time.perf_counter() - self.begin
            print(f"after {seconds:.2f} s: step {batch}, loss {logs['loss']:.4f}", flush=True)


with millrace.Strategy(devices=1).scope():
    hidden = [keras.layers.Dense(WIDTH, "relu") for _ in range(2)]
    model = keras.Sequential([*hidden, keras.layers.Dense(1)])
model.compile(optimizer="adam", loss="mse", steps_per_execution=32)

print("once per execution:")
model.fit(x, x[:, :1], batch_size=128, epochs=2, verbose=0, callbacks=[PrintLoss()])
print("once per step:")
model.set_asynchronous_callbacks(True)
model.fit(x, x[:, :1], batch_size=128, epochs=2, verbose=0, callbacks=[PrintLoss()])
