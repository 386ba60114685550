"""Two functions as the two stages of a pipeline, on two devices."""

import millrace  # before Keras: it makes JAX the backend
import keras
import numpy as np

strategy = millrace.Strategy(devices="cpu:2")  # before anything else uses JAX
encoder, decoder = keras.layers.Dense(32, "tanh"), keras.layers.Dense(1)
optimizer = keras.optimizers.Adam(0.01)


def batches():
    random = np.random.default_rng(0)
    while True:
        x = random.normal(size=(32, 8)).astype("float32")
        yield x, x.sum(axis=1, keepdims=True)


def first(x, y):
    return encoder(x), y


def last(hidden, y):
    return keras.ops.mean((decoder(hidden) - y) ** 2)


infeed, outfeed = millrace.InfeedQueue(batches), millrace.OutfeedQueue()
with strategy.scope():
    millrace.pipeline(
        [first, last],
        4,  # micro-batches in one update
        updates=50,
        infeed=infeed,
        outfeed=outfeed,
        optimizer_function=lambda loss: (optimizer, loss),
    )
(losses,) = outfeed.dequeue()
print(
    f"{len(losses)} losses, of the first update {losses[:4].mean():.3f}, of the last "
    f"{losses[-4:].mean():.3f}"
)
infeed.close()
