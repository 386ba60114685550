"""Accumulation in plain Keras by a loop of hand, for optimizers that count updates.

An optimizer of Keras that accumulates clips, schedules and averages weights at every step. Here a
batch is all rows of an update: its parts run one after the other as batches of their own, and the
mean of their gradients makes one update.
"""

import types
from typing import Any

import jax
import keras


def accumulate_by_hand(model: keras.Model, steps: int) -> keras.Model:
    """Makes each batch of `model` be `steps` batches of one update. Returns the model."""

    def train_step(self: Any, state: Any, data: Any) -> Any:
        trainable, others, optimizer, metrics = state
        compute = jax.value_and_grad(self.compute_loss_and_updates, has_aux=True)
        logs, sums = {}, None
        for part in range(steps):
            x, y, weight = keras.utils.unpack_x_y_sample_weight(_part(data, part, steps))
            (_, (loss, y_pred, others, metrics)), gradients = compute(
                trainable, others, metrics, x, y, weight,
                training=True, optimizer_variables=optimizer,
            )  # fmt: skip
            logs, metrics = self._update_metrics_variables(metrics, loss, x, y, y_pred, weight)
            sums = gradients if sums is None else jax.tree.map(jax.numpy.add, sums, gradients)
        means = [total / steps for total in sums]
        trainable, optimizer = self.optimizer.stateless_apply(optimizer, means, trainable)
        return logs, (trainable, others, optimizer, metrics)

    model.train_step = types.MethodType(train_step, model)
    return model


def _part(data: Any, part: int, steps: int) -> Any:
    def of(leaf: Any) -> Any:
        rows = len(leaf) // steps
        return leaf[part * rows : (part + 1) * rows]

    return jax.tree.map(of, data)
