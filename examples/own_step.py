"""A `train_step` of one's own, accumulated and on two replicas: the update of one big batch."""

import millrace  # isort: skip - before Keras: it makes JAX the backend

import jax
import keras
import numpy as np
from keras import ops


class SharpnessAware(keras.Sequential):
    """Learns from the gradient a little uphill of its weights."""

    def train_step(self, state, data):
        """Returns logs and the new state."""
        weights, others, optimizer, metrics = state
        x, y = data

        def loss_of(weights):
            return ops.mean((self.stateless_call(weights, others, x, training=True)[0] - y) ** 2)

        loss, slopes = jax.value_and_grad(loss_of)(weights)
        norm = ops.sqrt(sum(ops.sum(slope**2) for slope in slopes))
        uphill = [w + 0.05 * slope / norm for w, slope in zip(weights, slopes, strict=True)]
        gradients = jax.grad(loss_of)(uphill)
        weights, optimizer = self.optimizer.stateless_apply(optimizer, gradients, weights)
        return {"error": loss}, (weights, others, optimizer, metrics)


def trained(batch_size, micro_batches, devices):
    """Returns the weights after a training of four updates."""
    keras.utils.set_random_seed(0)
    with millrace.Strategy(devices=devices).scope():
        model = SharpnessAware([keras.Input((8,)), keras.layers.Dense(4), keras.layers.Dense(1)])
    model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=micro_batches)
    model.compile("adam")
    x = np.random.default_rng(0).normal(size=(256, 8)).astype("float32")
    model.fit(x, x[:, :1], batch_size=batch_size, shuffle=False, verbose=0)
    return np.concatenate([weight.ravel() for weight in model.get_weights()])


parts = trained(batch_size=8, micro_batches=4, devices="cpu:2")
whole = trained(batch_size=64, micro_batches=1, devices=1)
print(f"64 rows, or 8 rows x 4 micro-batches x 2 replicas: {abs(parts - whole).max():.0e} apart")
