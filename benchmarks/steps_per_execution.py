"""One epoch of `fit`, compared with plain Keras and with JAX without Keras.

Claims, per step on two CPU cores: tiny >= 10x plain Keras, mlp >= 1.15x, lstm >= 1.3x,
convnet >= 1.25x, each at the best steps_per_execution of plain Keras; and within 1.25x
(tiny) and 1.05x (the others) of the best handwritten form.
"""

import millrace  # isort: skip
import jax
import numpy as np

import harness
import models

KERAS_STEPS = (1, 8, 32, 128)
CLAIMS = {"tiny": (10, 1.25), "mlp": (1.15, 1.05), "lstm": (1.3, 1.05), "convnet": (1.25, 1.05)}


def measure(case: models.Case, rounds: int) -> list[str]:
    """Prints the rows of one model and returns its ratios as lines."""
    x, y = case.data()
    strategy = millrace.Strategy()
    cases = {}

    def fit(model):
        return lambda: model.fit(x, y, batch_size=case.batch, epochs=1, verbose=0)

    for steps in KERAS_STEPS:
        cases[f"keras, steps_per_execution={steps}"] = fit(case.model(steps_per_execution=steps))
    for steps in (1, 32, case.steps):
        model = strategy.attach(case.model(steps_per_execution=steps))
        cases[f"millrace, steps_per_execution={steps}"] = fit(model)

    batches = models.stacked(case)
    forms = {"scan": models.epoch_by_scan(case)}
    forms |= {f"{n} unrolled": models.epoch_by_unrolled(case, n) for n in (1, 4, 8)}
    for name, epoch in forms.items():
        states = [models.handwritten_state(case)]

        def run(epoch=epoch, states=states):
            states[0] = jax.block_until_ready(epoch(states[0], batches))

        cases[f"jax, {name}"] = run

    # `fit` shuffles every epoch; the forms above use batches stacked beforehand.
    states = [models.handwritten_state(case)]
    scan = models.epoch_by_scan(case)

    def shuffle_and_scan():
        shuffled = models.stacked(case, np.random.permutation(case.rows))
        states[0] = jax.block_until_ready(scan(states[0], shuffled))

    cases["scan in jax, after shuffling"] = shuffle_and_scan

    times = harness.paired(cases, rounds)
    print(f"{case.name}: {case.steps} steps of {case.batch} rows")
    for name, values in times.items():
        harness.row(name, values, case.steps)

    def best(prefix):
        return min((v for n, v in times.items() if n.startswith(prefix)), key=sorted_median)

    faster, slower = CLAIMS[case.name]
    ours = best("millrace")
    _, gain = harness.ratio(f"{case.name}: keras / millrace", best("keras"), ours)
    _, limit = harness.ratio(f"{case.name}: millrace / jax", ours, best("jax"))
    shuffles = times["scan in jax, after shuffling"]
    _, fair = harness.ratio(f"{case.name}: millrace / jax that shuffles", ours, shuffles)
    return [f"{gain}   claim >= {faster}x", f"{limit}   claim <= {slower}x", fair]


def sorted_median(values):
    """Middle of the sorted values."""
    return sorted(values)[len(values) // 2]


def main() -> None:
    """Runs all models and prints the ratios last."""
    options = harness.arguments(__doc__)
    harness.header("Training loop: time per step inside fit")
    lines = []
    for case in models.chosen(options.only, options.small):
        lines += measure(case, options.rounds)
    print()
    print("\n".join(lines))


if __name__ == "__main__":
    main()
