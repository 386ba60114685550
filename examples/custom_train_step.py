"""A stock model with a custom `train_step`: a pure function, as Keras requires on JAX.

It is the step of keras.io/guides/custom_train_step_in_jax, and also logs the norm of the gradient
next to the loss. The strategy runs it in a compiled loop like any other step.
"""

import millrace  # isort: skip - first: it makes JAX the backend of Keras

import sys

import jax
import keras
import numpy as np
from keras import ops

EPOCHS = 2 if "--small" in sys.argv else 5


class Watched(keras.Sequential):
    """Logs the norm of the last gradient."""

    def train_step(self, state, data):
        """Returns logs and the new state, without side effects."""
        trainable, non_trainable, optimizer, metrics = state
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        (_, aux), gradients = jax.value_and_grad(self.compute_loss_and_updates, has_aux=True)(
            trainable,
            non_trainable,
            metrics,
            x,
            y,
            sample_weight,
            training=True,
            optimizer_variables=optimizer,
        )
        loss, _, non_trainable, metrics = aux
        trainable, optimizer = self.optimizer.stateless_apply(optimizer, gradients, trainable)

        (tracker,) = self.metrics  # compile() was given no others
        metrics = tracker.stateless_update_state(metrics, loss, sample_weight=x.shape[0])
        logs = {tracker.name: tracker.stateless_result(metrics)}
        logs["gradient_norm"] = ops.sqrt(sum(ops.sum(g * g) for g in gradients))
        return logs, (trainable, non_trainable, optimizer, metrics)


random = np.random.default_rng(0)
x = random.standard_normal((1_600, 8), dtype="float32")
y = x.sum(axis=1, keepdims=True)

keras.utils.set_random_seed(0)
with millrace.Strategy().scope():
    model = Watched([keras.Input((8,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(1)])
model.compile(optimizer="adam", loss="mse", steps_per_execution=50)
history = model.fit(x, y, batch_size=32, epochs=EPOCHS, verbose=0).history
for epoch in range(EPOCHS):
    print(f"epoch {epoch}: " + ", ".join(f"{k} {v[epoch]:.4f}" for k, v in history.items()))
