"""Cost of watching for the causes of compilations, while nothing is compiled.

Claim: at most 1 % of a warm step. Each execution asks JAX for the options that affect tracing, and
notes the running function and its position in the data. These calls are timed alone, because the
noise of a whole `fit` hides them, and compared with a step of `fit` at one step per execution,
where their share is largest. The peer is plain Keras, which watches nothing.
"""

import timeit

import millrace  # isort: skip
import numpy as np

import harness
import models
from millrace.programs.plan import Mode
from millrace.run.fit.controller import controller_of

CLAIM = 0.01
CALLS = 10_000


def watching(model) -> float:
    """Returns the seconds that one execution spends on watching."""
    function = controller_of(model).functions.compiled[Mode.TRAIN]
    log, position, executables = function._log, function._position, function._chooser.executables

    def watch():
        log.runs(function._name)
        position.begin(1, 0)
        executables.now()
        position.add(1)

    return timeit.timeit(watch, number=CALLS) / CALLS


def measure(case: models.Case, steps: int, rounds: int) -> list[str]:
    """Prints the rows of one model and returns its ratios as lines."""
    ours = millrace.Strategy(devices=1).attach(case.model(steps_per_execution=1))
    plain = case.model(steps_per_execution=1)
    x, y = (array[: steps * case.batch] for array in case.data())
    count = len(x) // case.batch

    def fit(model):
        return lambda: model.fit(x, y, batch_size=case.batch, shuffle=False, verbose=0)

    times = harness.paired({"millrace": fit(ours), "keras": fit(plain)}, rounds)
    watched = [watching(ours) for _ in range(rounds)]
    print(f"{case.name}: batches of {case.batch} rows, one step per execution")
    for name, values in times.items():
        harness.row(name, values, count)
    harness.row("of which watching", watched, 1)
    steps_of_ours = [seconds / count for seconds in times["millrace"]]
    share = np.median([a / b for a, b in zip(watched, steps_of_ours, strict=True)])
    return [
        harness.ratio(f"{case.name}: millrace / keras", times["millrace"], times["keras"])[1],
        f"{case.name}: watching / a warm step = {share:.2%}   claim <= {CLAIM:.0%}",
    ]


def main() -> None:
    """Runs the models and prints the ratios last."""
    options = harness.arguments(__doc__, rounds=11)
    harness.header("The cost of watching for recompilations")
    lines = []
    for case in models.CASES:
        if case.name in ("tiny", "mlp") and options.only in case.name:
            lines += measure(case, 20 if options.small else 500, options.rounds)
    print()
    print("\n".join(lines))


if __name__ == "__main__":
    main()
