"""Three ways to one update of 512 rows: whole, in eight batches, in eight parts of one batch.

All start from the same weights and see the same rows in the same order. They differ in the memory
of a step, and in the batches that layers such as BatchNormalization see.
"""

import millrace  # before Keras: it makes JAX the backend
import keras
import numpy as np

x = np.random.default_rng(0).normal(size=(2048, 16)).astype("float32")
y = np.sin(x.sum(axis=1))


def train(batch_size, **options):
    keras.utils.set_random_seed(0)
    strategy = millrace.Strategy(devices=1)
    with strategy.scope():
        hidden = [keras.layers.Dense(64, "tanh") for _ in range(6)]
        model = keras.Sequential([keras.Input((16,)), *hidden, keras.layers.Dense(1)])
    model.compile(optimizer="adam", loss="mse", steps_per_execution=2048 // batch_size)
    model.set_gradient_accumulation_options(**options)
    history = model.fit(x, y, batch_size=batch_size, epochs=5, shuffle=False, verbose=0)
    loss, updates = history.history["loss"][-1], int(model.optimizer.iterations)
    peak = strategy.memory_report(model, (x[:batch_size], y[:batch_size])).peak
    print(f"{batch_size=} {options}: loss {loss:.4f}, {updates=}, {peak:,} bytes")
    return loss


whole = train(512)
others = train(64, gradient_accumulation_steps_per_replica=8), train(512, micro_batch=64)
print("the same losses:", np.allclose(others, whole, rtol=0, atol=1e-4))
