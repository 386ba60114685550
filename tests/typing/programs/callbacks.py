"""Callbacks, layers and optimizers of millrace are Keras's, with arguments that are checked."""

import keras

import millrace

queue = millrace.OutfeedQueue()
model = millrace.Strategy().attach(
    keras.Sequential([keras.layers.Dense(1), millrace.layers.Outfeed(queue)])
)
optimizer = millrace.optimizers.OutfeedOptimizer(keras.optimizers.SGD(), queue)
model.compile(optimizer=optimizer, loss="mse")
checkpoint = millrace.callbacks.Checkpoint("saves", every_steps=16, keep=2)
statistics = millrace.callbacks.TensorStatistics(activations=["dense*"], every=10)
watch: keras.callbacks.Callback = millrace.callbacks.NaNWatch(last=5)
model.fit(epochs=1, callbacks=[checkpoint, statistics, watch, millrace.callbacks.Report("run")])
millrace.callbacks.Checkpoint("saves", every_step=16)  # pyright: ignore[reportCallIssue]
millrace.callbacks.NaNWatch(last="5")  # pyright: ignore[reportArgumentType]
try:
    model.fit(epochs=1)
except millrace.errors.NonFiniteError as error:
    print(error)
