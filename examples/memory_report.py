"""The memory of training, and changes that would make it fit, before anything runs."""

import millrace  # before Keras: it makes JAX the backend
import keras

strategy = millrace.Strategy(devices=1)
with strategy.scope():
    hidden = [keras.layers.Dense(256, "tanh", name=f"hidden_{k}") for k in range(2)]
    model = keras.Sequential([keras.Input((64,)), *hidden, keras.layers.Dense(1)], name="mlp")
model.compile("adam", "mse", steps_per_execution=2)


def batch(rows):
    return ((rows, 64), "float32"), ((rows, 1), "float32")  # x and y; arrays would do as well


report = strategy.memory_report(model, batch(4096), budget="12MB")
print(report)

# The change with the fewest FLOPs, or the second: fewer rows in a batch, more of them in an update.
model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=4)
model.compile("adam", "mse", steps_per_execution=8)
report = strategy.memory_report(model, batch(1024), budget="12MB")
print(f"\nafterwards: {report.verdict}")
