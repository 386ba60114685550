"""Cost of the first execution: compilation, by steps per execution.

Claims, for mlp (a loop) and convnet (unrolled on CPU): with 1000 steps per execution a model
compiles in at most 1.1x the time that it takes with 8, and its executables allocate at most 1.1x
the temporary memory; an execution cut short by the end of the data, and a second `fit` with
another data set, compile nothing. Peer: plain Keras, which compiles one step and dispatches it
repeatedly.

Every time is that of a new model, with empty JAX caches and no cache on disk. `compiled` comes from
`Strategy.compile_log`; `to first` is the delay that the user sees: the time of a first `fit` of one
execution minus that of a second one, so the steps themselves do not count.
"""

import os

os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"

import statistics
from dataclasses import dataclass

import millrace  # isort: skip
import jax
import keras
import numpy as np

import harness
import models
from millrace.compilation.executables.sharing import sharing

STEPS = (8, 1000)
UNEVEN = 100  # also one that is not a multiple of the longest unrolled program, 8
CASES = ("mlp", "convnet")
CLAIM = 1.1


class Rows(keras.utils.PyDataset):
    """The first batches of a case; `fit` draws all of them."""

    def __init__(self, case: models.Case, steps: int):
        super().__init__()
        self._batch, self._steps = case.batch, steps
        self._x, self._y = case.data()

    def __len__(self) -> int:
        return self._steps

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        begin = index * self._batch % (len(self._x) - self._batch)
        return self._x[begin : begin + self._batch], self._y[begin : begin + self._batch]


@dataclass(frozen=True)
class First:
    """Costs of a new model."""

    to_first: float
    compiled: float = 0.0
    temporary_bytes: int = 0


def first_of_ours(case: models.Case, steps: int) -> First:
    """Times a new model under a new strategy."""
    strategy = millrace.Strategy()
    seconds = first_less_second(strategy.attach(case.model(steps_per_execution=steps)), case, steps)
    log = [record for record in strategy.compile_log if record.is_executable]
    return First(
        to_first=seconds,
        compiled=sum(record.seconds for record in log),
        temporary_bytes=max(record.temporary_bytes for record in log),
    )


def first_of_keras(case: models.Case, steps: int) -> First:
    """Times a new model without a strategy."""
    return First(first_less_second(case.model(steps_per_execution=steps), case, steps))


def first_less_second(model: keras.Model, case: models.Case, steps: int) -> float:
    """Returns the extra seconds of the first `fit` compared with the second."""
    jax.clear_caches()
    sharing.clear()
    dataset = Rows(case, steps)
    first, second = (
        harness.seconds(lambda: model.fit(dataset, shuffle=False, verbose=0)) for _ in range(2)
    )
    return first - second


def compilations(case: models.Case, steps: int) -> dict[str, int]:
    """Returns the number of compilations of each of several fits of one model."""
    strategy = millrace.Strategy()
    model = strategy.attach(case.model(steps_per_execution=steps))
    part = steps // 2 + 1
    fits = {
        "first": Rows(case, 2 * steps),
        "again": Rows(case, 2 * steps),
        "cut short": Rows(case, steps + part),
        "only a part": Rows(case, part),
    }
    counts = {}
    for name, dataset in fits.items():
        before = len(strategy.compile_log)
        model.fit(dataset, shuffle=False, verbose=0)
        counts[name] = len(strategy.compile_log) - before
    return counts


def measure(case: models.Case, choices: tuple[int, int], rounds: int) -> list[str]:
    """Prints the rows of one model and returns its ratios as lines."""
    kinds = {"millrace": first_of_ours, "keras": first_of_keras}
    results: dict[tuple[str, int], list[First]] = {
        (name, steps): [] for steps in choices for name in kinds
    }
    for turn in range(-1, rounds):  # the first round is a warm-up
        for name, steps in results if turn % 2 == 0 else reversed(results):
            result = kinds[name](case, steps)
            if turn >= 0:
                results[name, steps].append(result)

    print(f"{case.name}: batches of {case.batch} rows; of n={rounds}")
    print(f"  {'steps per execution':<24} {'to first':>22} {'compiled':>22}   temporary")
    for (name, steps), firsts in results.items():
        line = f"  {name + ', ' + str(steps):<24} {spread([f.to_first for f in firsts]):>22}"
        if name == "millrace":
            line += f" {spread([f.compiled for f in firsts]):>22}"
            line += f"   {firsts[0].temporary_bytes / 2**10:.1f} KiB"
        print(line)

    low, high = choices
    short, long = results["millrace", low], results["millrace", high]
    title = f"{case.name}: {high} / {low} steps,"
    lines = [
        harness.ratio(f"{title} {name}", [getattr(f, key) for f in long], under)[1]
        for name, key in {
            "compiled": "compiled",
            "to first execution": "to_first",
            "temporary bytes": "temporary_bytes",
        }.items()
        if all(under := [getattr(f, key) for f in short])
    ]
    lines = [f"{line}   claim <= {CLAIM}x" for line in lines]
    for steps in sorted({*choices, UNEVEN}):
        counts = compilations(case, steps)
        text = ", ".join(f"{name} {count}" for name, count in counts.items())
        later = sum(counts.values()) - counts["first"]
        lines.append(f"{case.name}: {steps} steps, compilations: {text}; later {later}   claim 0")
    for steps in choices:
        ours = [f.to_first for f in results["millrace", steps]]
        theirs = [f.to_first for f in results["keras", steps]]
        lines.append(
            harness.ratio(f"{case.name}: {steps} steps, millrace / keras to first", ours, theirs)[1]
        )
    return lines


def spread(values: list[float]) -> str:
    """Writes median and spread of seconds."""
    values = sorted(values)
    return f"{statistics.median(values):.2f} s ({values[0]:.2f}-{values[-1]:.2f})"


def main() -> None:
    """Runs both models and prints the ratios last."""
    options = harness.arguments(__doc__)
    harness.header("Compilation: seconds before the first execution")
    lines = []
    for case in models.CASES:
        if case.name in CASES and options.only in case.name:
            lines += measure(case, (8, 64) if options.small else STEPS, options.rounds)
    print()
    print("\n".join(lines))


if __name__ == "__main__":
    main()
