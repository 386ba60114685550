"""One epoch that accumulates four micro-batches per update, compared with one update per batch.

Claim, for all four models, in executions of 32 steps and of the whole epoch: a micro-batch with
accumulation takes at most 1.05x the time of a batch without. Second peer: plain Keras, whose
optimizers can accumulate (`gradient_accumulation_steps`). Limit, if a loop is the fastest form: a
handwritten scan over updates of several micro-batches in JAX without Keras.

    without   | gradient, update | gradient, update | gradient, update | gradient, update |
    with      | gradient, add    | gradient, add    | gradient, add    | gradient, add, update |
"""

import millrace  # isort: skip
import jax
import jax.numpy as jnp
import keras
from jax import lax

import harness
import models

MICRO_BATCHES = 4
CLAIM = 1.05
LIMITS = ("tiny", "mlp", "lstm")
EPOCHS = {"tiny": 10}  # one takes a few milliseconds: too few to time


def measure(case: models.Case, rounds: int) -> list[str]:
    """Prints the rows of one model and returns its ratios as lines."""
    x, y = case.data()
    strategy = millrace.Strategy()
    epochs = EPOCHS.get(case.name, 1)
    cases = {}

    def fit(model):
        return lambda: model.fit(x, y, batch_size=case.batch, epochs=epochs, verbose=0)

    executions = {"32": 32, "epoch": case.steps}
    for name, steps in executions.items():
        cases[f"millrace, {name}, 1"] = fit(strategy.attach(case.model(steps_per_execution=steps)))
        model = strategy.attach(case.model(steps_per_execution=steps))
        model.set_gradient_accumulation_options(
            gradient_accumulation_steps_per_replica=MICRO_BATCHES
        )
        cases[f"millrace, {name}, {MICRO_BATCHES}"] = fit(model)
        cases[f"keras, {name}, {MICRO_BATCHES}"] = fit(keras_model(case, steps))
    if case.name in LIMITS:
        batches = models.stacked(case)
        for micro_batches, epoch in (
            (1, models.epoch_by_scan(case)),
            (MICRO_BATCHES, epoch_by_updates(case)),
        ):
            states = [models.handwritten_state(case)]

            def run(epoch=epoch, states=states):
                for _ in range(epochs):
                    states[0] = jax.block_until_ready(epoch(states[0], batches))

            cases[f"jax scan, epoch, {micro_batches}"] = run

    times = harness.paired(cases, rounds)
    print(f"{case.name}: {case.steps} steps of {case.batch} rows")
    print("  steps per execution, per update")
    for name, values in times.items():
        harness.row(name, values, case.steps * epochs)

    def line(name, over, under):
        return harness.ratio(f"{case.name}: {name}", times[over], times[under])[1]

    lines = []
    for name in executions:
        own = f"millrace, {name}, {MICRO_BATCHES}"
        gain = line(
            f"keras / millrace, both {MICRO_BATCHES}, {name}",
            f"keras, {name}, {MICRO_BATCHES}",
            own,
        )
        cost = line(f"millrace {MICRO_BATCHES} / 1, {name}", own, f"millrace, {name}, 1")
        lines += [gain, f"{cost}   claim <= {CLAIM}x"]
    if case.name in LIMITS:
        scan = f"jax scan, epoch, {MICRO_BATCHES}"
        lines.append(line(f"jax {MICRO_BATCHES} / 1, epoch", scan, "jax scan, epoch, 1"))
        own = f"millrace, epoch, {MICRO_BATCHES}"
        lines.append(line(f"millrace / jax, both {MICRO_BATCHES}, epoch", own, scan))
    return lines


def keras_model(case: models.Case, steps: int) -> keras.Model:
    """Returns a stock model whose optimizer accumulates."""
    model = case.model()
    optimizer = keras.optimizers.Adam(models.RATE, gradient_accumulation_steps=MICRO_BATCHES)
    model.compile(optimizer=optimizer, loss=model.loss, steps_per_execution=steps)
    return model


def epoch_by_updates(case: models.Case):
    """Returns an epoch of whole updates in one dispatch: a scan of updates over scans of gradients.

    State and loss are those of `models.handwritten_step`.
    """

    def loss_of(weights, batch):
        x, y = batch
        if case.loss == "mse":
            return jnp.mean((case.forward(weights, x) - y) ** 2)
        log = jax.nn.log_softmax(case.forward(weights, x))
        return -jnp.mean(jnp.take_along_axis(log, y[:, None], axis=1))

    def update(state, micro_batches):
        weights, first, second, count, total, seen = state

        def micro_batch(carry, batch):
            summed, total, seen = carry
            loss, gradients = jax.value_and_grad(loss_of)(weights, batch)
            rows = batch[0].shape[0]
            return (
                jax.tree.map(jnp.add, summed, gradients),
                total + loss * rows,
                seen + rows,
            ), None

        carry = (jax.tree.map(jnp.zeros_like, weights), total, seen)
        (summed, total, seen), _ = lax.scan(micro_batch, carry, micro_batches)
        gradients = [g / MICRO_BATCHES for g in summed]
        weights, first, second, count = models.adam(weights, first, second, count, gradients)
        return (weights, first, second, count, total, seen), None

    def epoch(state, batches):
        grouped = jax.tree.map(lambda a: a.reshape(-1, MICRO_BATCHES, *a.shape[1:]), batches)
        return lax.scan(update, state, grouped)[0]

    return jax.jit(epoch, donate_argnums=0)


def main() -> None:
    """Runs all models and prints the ratios last."""
    options = harness.arguments(__doc__)
    harness.header(
        f"Gradient accumulation: time per micro-batch inside fit, {MICRO_BATCHES} per update"
    )
    lines = []
    for case in models.chosen(options.only, options.small):
        lines += measure(case, options.rounds)
    print()
    print("\n".join(lines))


if __name__ == "__main__":
    main()
