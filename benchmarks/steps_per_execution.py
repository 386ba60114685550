"""One epoch of `fit`, compared with plain Keras and with JAX without Keras.

Claims, per step on two CPU cores: tiny >= 10x plain Keras, mlp >= 1.15x, lstm >= 1.3x,
convnet >= 1.25x, each at the best steps_per_execution of plain Keras; and within 1.25x
(tiny) and 1.05x (the others) of the best handwritten form.

From 3.16 on, Keras runs the steps of an execution as its own scan. With `--next-python PATH`, the
Python of an environment with such a Keras, it is timed in the same rounds, as "next".
"""

import millrace  # isort: skip
import jax
import numpy as np

import harness
import models
from nextkeras import NextKeras

KERAS_STEPS = (1, 8, 32, 128)
NEXT_STEPS = (1, 32, 128)
CLAIMS = {"tiny": (10, 1.25), "mlp": (1.15, 1.05), "lstm": (1.3, 1.05), "convnet": (1.25, 1.05)}


def measure(case: models.Case, rounds: int, next_python: str | None) -> list[str]:
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

    following = None
    if next_python:
        following = NextKeras(next_python, case.name, case.rows)
        cases |= {f"next, steps_per_execution={n}": following.fit(n) for n in NEXT_STEPS}

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
    if following:
        following.close()
        print(f"  next is {following.versions}")
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
    lines = [f"{gain}   claim >= {faster}x", f"{limit}   claim <= {slower}x", fair]
    if following:
        lines += next_lines(case.name, times, ours)
    return lines


def next_lines(name: str, times: dict[str, list[float]], ours: list[float]) -> list[str]:
    """Returns the ratios of the next Keras: at its best, and its scan against its single steps."""
    single, *scans = (times[f"next, steps_per_execution={n}"] for n in NEXT_STEPS)
    scan = min(scans, key=sorted_median)
    best = min(single, scan, key=sorted_median)
    return [
        harness.ratio(f"{name}: next keras / millrace", best, ours)[1],
        harness.ratio(f"{name}: next keras's scan / millrace", scan, ours)[1],
        harness.ratio(f"{name}: next keras's scan / its single steps", scan, single)[1],
    ]


def sorted_median(values):
    """Middle of the sorted values."""
    return sorted(values)[len(values) // 2]


def main() -> None:
    """Runs all models and prints the ratios last."""
    options = harness.arguments(
        __doc__, next_python="Python of an environment with Keras 3.16 or newer"
    )
    harness.header("Training loop: time per step inside fit")
    lines = []
    for case in models.chosen(options.only, options.small):
        lines += measure(case, options.rounds, options.next_python)
    print()
    print("\n".join(lines))


if __name__ == "__main__":
    main()
