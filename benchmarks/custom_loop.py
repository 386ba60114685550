"""A custom training loop, compared with the same loop handwritten in JAX without Keras.

Claims, per step on two CPU cores: with the data on the device, repeat() takes at most 1.1x the
handwritten fori_loop (mlp, lstm), or 1.2x where a step takes 4 us (tiny). With a data set in Python
and every loss in an outfeed, it takes at most half the time of a handwritten step that is called
for each batch (tiny).
"""

import millrace  # isort: skip
import jax
import keras
import numpy as np
from jax import lax

import harness
import models

CLAIMS = {"tiny": 1.2, "mlp": 1.1, "lstm": 1.1}


def keras_step(case):
    """Returns a training step in plain Keras, and the arrays to wait for."""
    model = case.model()
    loss_of, optimizer = model.loss, keras.optimizers.Adam(models.RATE)
    if loss_of == "mse":
        loss_of = keras.losses.MeanSquaredError()
    mean = keras.metrics.Mean()

    def step(x, y):
        loss, gradients = millrace.value_and_grad(
            lambda: loss_of(y, model(x, training=True)), model.trainable_variables
        )
        optimizer.apply(gradients, model.trainable_variables)
        mean.update_state(loss)
        return loss

    return step, mean


def on_device(case):
    """Returns an epoch of repeat() over batches on the device."""
    step, mean = keras_step(case)
    batches = models.stacked(case)

    @millrace.compile
    def epoch(batches):
        def body(index):
            step(*jax.tree.map(lambda a: a[index], batches))
            return index + 1

        return millrace.repeat(case.steps, body, inputs=0)

    def run():
        epoch(batches)
        jax.block_until_ready(mean.total.value)

    return run


def through_queues(case, compiled):
    """Returns an epoch of repeat() with an infeed and an outfeed."""
    step, mean = keras_step(case)
    rows = case.steps * case.batch
    x, y = (a[:rows].reshape(case.steps, case.batch, *a.shape[1:]) for a in case.data())
    infeed, losses = millrace.InfeedQueue(lambda: zip(x, y, strict=True)), millrace.OutfeedQueue()

    def body(x, y):
        losses.enqueue(step(x, y))

    @millrace.compile
    def epoch(count):
        millrace.repeat(count, body, infeed=infeed)

    def run():
        if compiled:
            epoch(case.steps)
        else:
            millrace.repeat(case.steps, body, infeed=infeed)
        jax.block_until_ready(mean.total.value)
        if len(losses.dequeue()) != case.steps:
            raise AssertionError("losses are missing")
        infeed.close()

    return run


def by_hand(case):
    """Returns an epoch as a fori_loop over batches on the device."""
    step, batches = models.handwritten_step(case), models.stacked(case)
    states = [models.handwritten_state(case)]

    def epoch(state, batches, count):
        def body(index, state):
            return step(state, jax.tree.map(lambda a: a[index], batches))

        return lax.fori_loop(0, count, body, state)

    compiled = jax.jit(epoch, donate_argnums=0)

    def run():
        states[0] = jax.block_until_ready(compiled(states[0], batches, np.int32(case.steps)))

    return run


def step_by_step(case):
    """Returns an epoch as a Python loop that calls a handwritten step and keeps its losses."""
    step = models.handwritten_step(case)
    rows = case.steps * case.batch
    x, y = (a[:rows].reshape(case.steps, case.batch, *a.shape[1:]) for a in case.data())
    states = [models.handwritten_state(case)]

    def with_loss(state, batch):
        new = step(state, batch)
        return new, new[4] - state[4]

    compiled = jax.jit(with_loss, donate_argnums=0)

    def run():
        losses = []
        for batch in zip(x, y, strict=True):
            states[0], loss = compiled(states[0], batch)
            losses.append(loss)
        np.asarray(jax.device_get(losses))

    return run


def measure(case, rounds):
    """Prints the rows of one model and returns its ratios as lines."""
    cases = {
        "jax, fori_loop": by_hand(case),
        "millrace, repeat": on_device(case),
        "jax, a call for each batch": step_by_step(case),
        "millrace, repeat with queues": through_queues(case, compiled=False),
        "millrace, compiled with queues": through_queues(case, compiled=True),
    }
    times = harness.paired(cases, rounds)
    print(f"{case.name}: {case.steps} steps of {case.batch} rows")
    for name, values in times.items():
        harness.row(name, values, case.steps)
    _, loop = harness.ratio(
        f"{case.name}: repeat / jax fori_loop", times["millrace, repeat"], times["jax, fori_loop"]
    )
    calls = times["jax, a call for each batch"]
    _, queues = harness.ratio(
        f"{case.name}: jax calls / repeat with queues", calls, times["millrace, repeat with queues"]
    )
    if case.name == "tiny":
        queues += "   claim >= 2x"
    _, callbacks = harness.ratio(
        f"{case.name}: jax calls / compiled with queues",
        calls,
        times["millrace, compiled with queues"],
    )
    claim = CLAIMS.get(case.name)
    return [loop + (f"   claim <= {claim}x" if claim else ""), queues, callbacks]


def main() -> None:
    """Runs all models and prints the ratios last."""
    options = harness.arguments(__doc__)
    harness.header("Custom training loops: time per step")
    lines = []
    for case in models.chosen(options.only, options.small):
        lines += measure(case, options.rounds)
    print()
    print("\n".join(lines))


if __name__ == "__main__":
    main()
