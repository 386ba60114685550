"""Sixteen layers within 60 % of their memory: backward runs some of them again."""

import millrace  # before Keras: it makes JAX the backend
import keras
import numpy as np

x = np.random.default_rng(0).normal(size=(4096, 64)).astype("float32")
y = np.sin(x.sum(axis=1))


def train(**options):
    keras.utils.set_random_seed(0)
    strategy = millrace.Strategy(devices=1)
    with strategy.scope():
        hidden = [keras.layers.Dense(64, "tanh") for _ in range(16)]
        model = keras.Sequential([keras.Input((64,)), *hidden, keras.layers.Dense(1)])
    model.compile(optimizer="adam", loss="mse", steps_per_execution=2)
    model.set_recomputation_options(**options)
    history = model.fit(x, y, batch_size=2048, epochs=3, shuffle=False, verbose=0)
    peak = strategy.memory_report(model, (x[:2048], y[:2048])).peak
    print(f"{options}: {peak / 1e6:.1f} MB")
    for choice in strategy.statistics().budgets:
        print(f"  {choice.extra_flops:.0%} more FLOPs: {choice.choice}")
    return history.history["loss"]


print("the same losses:", np.allclose(train(), train(budget=0.6), rtol=1e-5))
