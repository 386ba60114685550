"""LoRA on a base of int8, accumulated, and the memory that it takes to train."""

import millrace  # before Keras: it makes JAX the backend
import keras
import numpy as np

x = np.random.default_rng(0).normal(size=(512, 64)).astype("float32")
y = np.tanh(x @ np.random.default_rng(1).normal(size=(64, 8))).astype("float32")
strategy = millrace.Strategy(devices=1)


def build():
    keras.utils.set_random_seed(0)
    with strategy.scope():
        hidden = [keras.layers.Dense(256, "relu") for _ in range(2)]
        return keras.Sequential([keras.Input((64,)), *hidden, keras.layers.Dense(8)])


def train(model):
    # After quantize() and enable_lora(), which change what is trained.
    model.compile(optimizer=keras.optimizers.Adam(1e-3), loss="mse", steps_per_execution=8)
    model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=4)
    losses = model.fit(x, y, batch_size=16, epochs=5, verbose=0).history["loss"]
    need = strategy.memory_report(model, (x[:16], y[:16])).devices[0].stages[0]
    print(f"loss {losses[0]:.2f} to {losses[-1]:.2f}", end="; ")
    print(f"weights {need.parameters:,} bytes, optimizer state {need.optimizer_state:,}")


model = build()
print("float32:", end=" ")
train(model)

model.quantize("int8", filters="dense")
for layer in model.layers:
    layer.enable_lora(4)
print("int8 and LoRA:", end=" ")
train(model)
