"""A training that does not fit is planned by `fit` itself, with the same losses."""

import millrace  # before Keras: it makes JAX the backend
import keras
import numpy as np

x = np.random.default_rng(0).normal(size=(4096, 64)).astype("float32")
y = np.sin(x.sum(axis=1))


def train(memory):
    keras.utils.set_random_seed(0)
    strategy = millrace.Strategy(devices=1, memory=memory)
    with strategy.scope():
        hidden = [keras.layers.Dense(128, "tanh") for _ in range(8)]
        model = keras.Sequential([keras.Input((64,)), *hidden, keras.layers.Dense(1)])
    model.compile(optimizer="adam", loss="mse", steps_per_execution=2)
    history = model.fit(x, y, batch_size=2048, epochs=3, shuffle=False, verbose=0)
    peak = strategy.memory_report(model, (x[:2048], y[:2048])).peak
    print(f"memory={memory}: needs {peak / 1e6:.1f} MB")
    return history.history["loss"]


plain = train(memory=None)  # on a CPU nothing limits it
print("the same losses:", np.allclose(train(memory="8MB"), plain, rtol=1e-5))
