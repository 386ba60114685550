"""A `train_step` of one's own: time per step against `fit` with Keras's own step.

Claim: written as in Keras's guide for JAX, it takes at most 1.05x of the time of the stock step of
the same model, in one piece, accumulated, and on replicas.
"""

import millrace  # isort: skip
from collections.abc import Callable

import jax
import keras
import numpy as np
from keras import layers

import harness

CLAIM = 1.05
STEPS, ROWS = 16, 64
WAYS = {"one piece": (1, 1), "accumulated by 4": (1, 4), "2 replicas": (2, 1)}  # devices, steps


class OwnStep(keras.Model):
    """Its step is that of Keras's guide on customizing `fit` with JAX."""

    def train_step(self, state, data):
        """Runs one step."""
        trainable, others, optimizer, metrics = state
        x, y = data

        def loss_of(trainable, others):
            y_pred, others = self.stateless_call(trainable, others, x, training=True)
            return self.compute_loss(x, y, y_pred), (y_pred, others)

        gradient = jax.value_and_grad(loss_of, has_aux=True)
        (loss, (_, others)), gradients = gradient(trainable, others)
        trainable, optimizer = self.optimizer.stateless_apply(optimizer, gradients, trainable)
        (tracker,) = self.metrics
        metrics = tracker.stateless_update_state(metrics, loss)
        logs = {"loss": tracker.stateless_result(metrics)}
        return logs, (trainable, others, optimizer, metrics)


def model_of(kind: type[keras.Model], width: int, depth: int, length: int) -> keras.Model:
    """Returns a transformer over sequences of vectors."""
    inputs = x = keras.Input((length, width))
    for _ in range(depth):
        x = layers.LayerNormalization()(x + layers.MultiHeadAttention(4, width // 4)(x, x))
        hidden = layers.Dense(2 * width, activation="gelu")(x)
        x = layers.LayerNormalization()(x + layers.Dense(width)(hidden))
    return kind(inputs, layers.Dense(10)(layers.GlobalAveragePooling1D()(x)))


def fits_of(way: str, size: tuple[int, int, int]) -> dict[str, Callable[[], object]]:
    """Returns the epochs to time: of the stock step and of the own one."""
    width, _, length = size
    random = np.random.default_rng(0)
    x = random.normal(size=(ROWS * STEPS, length, width)).astype("float32")
    y = random.integers(0, 10, size=len(x))
    devices, steps = WAYS[way]
    fits: dict[str, Callable[[], object]] = {}
    for name, kind in (("stock step", keras.Model), ("own step", OwnStep)):
        keras.utils.set_random_seed(1)
        with millrace.Strategy(devices=f"cpu:{devices}").scope():
            model = model_of(kind, *size)
        model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=steps)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(1e-3), loss, steps_per_execution=STEPS // devices)
        arguments = {"batch_size": ROWS, "epochs": 1, "verbose": 0}
        fits[name] = lambda model=model, arguments=arguments: model.fit(x, y, **arguments)
    return fits


def main() -> None:
    """Times each way and prints the ratios last."""
    options = harness.arguments(__doc__, rounds=9)
    harness.header("A train_step of one's own against Keras's, inside fit")
    millrace.Strategy(devices="cpu:2")  # before JAX starts with one
    size = (16, 1, 8) if options.small else (64, 2, 32)
    lines: list[str] = []
    for way in WAYS:
        if options.only not in way:
            continue
        times = harness.paired(fits_of(way, size), options.rounds)
        print(f"{way}: {STEPS} steps of {ROWS} rows in one execution")
        for name, values in times.items():
            harness.row(name, values, STEPS)
        own, stock = times["own step"], times["stock step"]
        lines.append(harness.ratio(f"{way}: own / stock step", own, stock)[1])
    print()
    print("\n".join(f"{line}   claim <= {CLAIM}x" for line in lines))


if __name__ == "__main__":
    main()
