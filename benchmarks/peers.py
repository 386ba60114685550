"""millrace and its peers on the same work, in one run: `make peers`.

    fit, evaluate and predict of five models, a process for each side, on all cores
        plain Keras on JAX, this version and the next     at its best steps_per_execution
        Keras on torch                                    eager or compiled, the better of them
        handwritten JAX                                   a call for each step, and one scan
    a pipeline of two stages, in two processes of one core each
        torch.distributed.pipelining                      Schedule1F1B over gloo

Claim: every ratio, of the peer's time to that of millrace, is at least 1. Before anything is timed,
all sides train for an epoch from the same weights on the same batches, evaluate and predict: a side
whose result differs by more than 1e-3 of it ends the run. Then epochs of all sides alternate.

`make peers` sets up both other environments. `--next-python` names a Python with the next Keras,
`--torch-python` one with torch, Keras and JAX; without them, their columns are missing.
"""

import contextlib
import functools
import itertools
import os
import pathlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import millrace  # isort: skip  # noqa: F401 - it makes JAX the backend of Keras
import keras

import contender
import harness
import models
import pipeline_processes
import workers

TOLERANCE = 1e-3
KERAS_STEPS = ("1", "8", "32", "128")
NEXT_STEPS = ("1", "32", "128")
PIPELINE_UPDATES = (1, 11)  # in the fits of the pipelines


@dataclass(frozen=True)
class Side:
    """A process, or a part of what it can do: one column of the table."""

    name: str
    settings: tuple[str, ...]  # the best of them counts
    process: workers.Workers

    def tell(self, command: str) -> float:
        """Runs a command there."""
        return self.process.tell(command)[0]


def start(kind: str, small: bool, python: str | None = None, **variables: str) -> workers.Workers:
    """Starts the process of a side."""
    script = pathlib.Path(contender.__file__).resolve()
    command = [str(script), kind, "small" if small else "full"]
    variables = {"KERAS_BACKEND": "jax", **variables}
    return workers.Workers(command, [None], python or sys.executable, **variables)


@contextlib.contextmanager
def all_sides(
    small: bool, next_python: str | None, torch_python: str | None
) -> Iterator[list[Side]]:
    """Starts all sides, millrace first, and ends them."""
    keras_steps, next_steps = (KERAS_STEPS[:2],) * 2 if small else (KERAS_STEPS, NEXT_STEPS)
    processes = {name: start(name, small) for name in ("millrace", "keras", "jax")}
    if next_python:
        processes["next"] = start("keras", small, next_python)
    if torch_python:
        processes["torch"] = start("keras", small, torch_python, KERAS_BACKEND="torch")
    try:
        for process in processes.values():
            process.wait()
        sides = [
            Side("millrace", ("all",) if small else ("32", "all"), processes["millrace"]),
            Side(_keras(keras.__version__), keras_steps, processes["keras"]),
        ]
        if next_python:
            version = processes["next"].about.split()[1]
            sides.append(Side(_keras(version), next_steps, processes["next"]))
        if torch_python:
            sides.append(Side("keras on torch", ("eager", "compiled"), processes["torch"]))
        sides += [Side(f"jax, {name}", (name,), processes["jax"]) for name in ("steps", "scan")]
        yield sides
    finally:
        for process in processes.values():
            process.stop()


def _keras(version: str) -> str:
    return f"keras {'.'.join(version.split('.')[:2])}"


def measure(case: models.Case, mode: str, sides: list[Side], rounds: int) -> list[str]:
    """Checks and times one model; prints all times, and returns the figures as lines."""
    work = f"{case.name}, {mode}"
    passes: dict[str, Callable[[], float]] = {}
    results: dict[str, float] = {}
    for side in sides:
        for setting in side.settings:
            command = f"{case.name} {mode} {setting.replace('all', str(case.steps))}"
            name = side.name if len(side.settings) == 1 else f"{side.name}, {setting}"
            results[name] = side.tell(f"check {command}")
            passes[name] = functools.partial(side.tell, command)
    expected = next(iter(results.values()))
    differences = {name: abs(value / expected - 1) for name, value in results.items()}
    if wrong := [name for name, value in differences.items() if not value <= TOLERANCE]:  # NaN, too
        raise SystemExit(f"{work}: {', '.join(wrong)} computes something else: {results}")
    furthest = max(differences, key=lambda name: differences[name])
    if mode == "fit":  # the checks did not shuffle
        for function in passes.values():
            function()
    times = harness.alternate(passes, rounds)
    print(
        f"{work}: {case.steps} steps of {case.batch} rows; all sides computed {expected:.6g}, "
        f"{furthest} with the largest difference, {differences[furthest]:.0e} of it",
        flush=True,
    )
    for name, values in times.items():
        harness.row(name, values, case.steps)
    best = {
        side.name: min(
            (values for name, values in times.items() if name.startswith(side.name)),
            key=lambda values: sorted(values)[len(values) // 2],
        )
        for side in sides
    }
    return lines(work, best, case.steps)


def lines(work: str, times: dict[str, list[float]], steps: int) -> list[str]:
    """Returns a line with the time of millrace, and a ratio for each peer."""
    name, own = next(iter(times.items()))
    found = [harness.time_per_step(f"{work}: {name}", own, steps)]
    for peer in list(times)[1:]:
        _, line = harness.ratio(f"{work}: {peer}", times[peer], own)
        found.append(f"{line}   claim >= 1x")
    return found


def note(text: str) -> None:
    """Prints what the page says beside machine and versions."""
    load = f"load of the machine before this part {os.getloadavg()[0]:.1f}"
    print(f"note      {load}; {text}\n", flush=True)


def main() -> None:
    """Measures all work, and prints the figures of each part last."""
    options = harness.arguments(
        __doc__,
        5,
        next_python="Python of an environment with the next Keras",
        torch_python="Python of an environment with torch, Keras and JAX",
    )
    harness.header("Peers on the same work: time per step")
    figures = []
    with all_sides(options.small, options.next_python, options.torch_python) as sides:
        note("; ".join(dict.fromkeys(side.process.about for side in sides[1:])))
        for case, mode in itertools.product(contender.cases(options.small), contender.MODES):
            if options.only in f"{case.name}, {mode}":
                figures += measure(case, mode, sides, options.rounds)
    print("", *figures, sep="\n")
    if not options.torch_python:
        return
    print()
    harness.header("Pipelines of two processes, one core each: time per update")
    note("the cost of a fit is not in these times")
    figures = []
    small = options.small
    for case in pipeline_processes.SMALL if small else pipeline_processes.CASES:
        if options.only in case.name:
            case = case if small else replace(case, updates=PIPELINE_UPDATES)
            times = pipeline_processes.against_torch(case, options.rounds, options.torch_python)
            figures += lines(case.name, times, 1)
    print("", *figures, sep="\n")


if __name__ == "__main__":
    main()
