"""A pipeline over two processes, compared with the ideal time and with PyTorch's pipeline.

Claims. An update takes at most 1 / 0.93 of the ideal time, and at most 0.80x (tanh) or 0.95x
(transformer) of `torch.distributed.pipelining` (Schedule1F1B over gloo) on the same stages. A fit
adds at most 15 ms, besides the time in which its first block of data is read.

    core 0   stage 0  F0 F1 F2       B0 ...       ideal = stage alone * (m + p - 1) / m
    core 1   stage 1     F0 B0 F1 B1 ...          m micro-batches, p = 2 stages

The stage alone is one process on one core that trains the layers of a stage with the same
accumulation, without a pipeline. It computes the gradient of its input, as the last stage does. Two
such processes run at the same time, to share the machine as the two stages do. Rounds of the
pipeline, the stage alone and the peer alternate.

Each of them runs fits of 1, 6 and 50 updates. The time of an update is the difference between the
longest and the shortest fit, divided by the difference of their updates; the cost of a fit is what
the shortest takes beyond its updates.

The peer needs a Python with torch: `--torch-python PATH`.
"""

import contextlib
import functools
import importlib.util
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import millrace  # isort: skip
import keras
import numpy as np

import harness
import workers

SEQUENCE, HEADS, RATE = 64, 4, 0.01
BAR, FIT_BAR = 0.93, 15
TORCH_BARS = {"tanh": 0.80, "transformer": 0.95}
STAGES = 2
UPDATES = (1, 6, 50)
# Of the time of an update, as `strategy.statistics()` prints them.
PARTS = ("waiting for devices", "dispatch", "waiting for data")


@dataclass(frozen=True)
class Case:
    """One stack of layers, of one size."""

    kind: str  # "tanh" or "transformer"
    width: int
    rows: int  # of a micro-batch
    micro_batches: int  # micro-batches in an update
    updates: tuple[int, ...] = UPDATES  # in a fit

    @property
    def name(self) -> str:
        """Name in the tables."""
        return f"{self.kind} {self.width}, {self.micro_batches} micro-batches of {self.rows}"

    @property
    def words(self) -> list[str]:
        """The case as arguments of a worker."""
        updates = ",".join(map(str, self.updates))
        return [self.kind, *map(str, (self.width, self.rows, self.micro_batches)), updates]

    @staticmethod
    def read(kind: str, width: str, rows: str, micro_batches: str, updates: str) -> "Case":
        """Returns the case of `words`."""
        numbers = tuple(map(int, updates.split(",")))
        return Case(kind, int(width), int(rows), int(micro_batches), numbers)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one row."""
        return (SEQUENCE, self.width) if self.kind == "transformer" else (self.width,)


CASES = (
    Case("tanh", 512, 64, 16),
    Case("tanh", 512, 64, 32),
    Case("transformer", 256, 4, 16),
    Case("transformer", 256, 4, 32),
)
SMALL = (Case("tanh", 64, 8, 4, (1, 3)), Case("transformer", 32, 1, 4, (1, 2)))


class Shift(keras.layers.Layer):
    """Adds a weight in front of the stage alone, so that its input needs a gradient."""

    def build(self, shape: Any) -> None:
        """Makes the weight."""
        self.shift = self.add_weight(shape=shape[1:], initializer="zeros")

    def call(self, x: Any) -> Any:
        """Returns the sum."""
        return x + self.shift


def stage_layers(case: Case, x: Any) -> Any:
    """Applies the layers of one stage."""
    layers = keras.layers
    if case.kind == "tanh":
        for _ in range(4):
            x = layers.Dense(case.width, "tanh")(x)
        return x
    for _ in range(2):
        y = layers.LayerNormalization()(x)
        x = layers.Add()([x, layers.MultiHeadAttention(HEADS, case.width // HEADS)(y, y)])
        y = layers.Dense(4 * case.width, "gelu")(layers.LayerNormalization()(x))
        x = layers.Add()([x, layers.Dense(case.width)(y)])
    return x


def pipelined(case: Case) -> keras.Model:
    """Returns a stock model of two stages, the same in both processes."""
    x = inputs = keras.Input(case.shape)
    for stage in range(STAGES):
        with millrace.PipelineStage(stage):
            x = stage_layers(case, x)
    model = keras.Model(inputs, x)
    model.set_pipelining_options(gradient_accumulation_steps_per_replica=case.micro_batches)
    return model


def alone(case: Case) -> keras.Model:
    """Returns one stage as a separate model."""
    inputs = keras.Input(case.shape)
    model = keras.Model(inputs, stage_layers(case, Shift()(inputs)))
    model.set_gradient_accumulation_options(
        gradient_accumulation_steps_per_replica=case.micro_batches
    )
    return model


def worker(role: str, case: Case, address: str, index: int) -> None:
    """Trains the pipeline together with the other process, or a stage alone."""
    if role == "pipeline":
        millrace.distributed.initialize(address, STAGES, index)
    keras.utils.set_random_seed(0)
    strategy = millrace.Strategy()
    with strategy.scope():
        model = (pipelined if role == "pipeline" else alone)(case)
        model.compile(
            keras.optimizers.SGD(RATE),
            "mse",
            steps_per_execution=case.micro_batches * max(case.updates),
        )
    random = np.random.default_rng(0)
    rows = case.micro_batches * case.rows * max(case.updates)
    x, y = (random.standard_normal((rows, *case.shape), dtype=np.float32) for _ in range(2))

    walls: list[float] = []  # seconds of the fits

    def fit(updates: int) -> None:
        part = slice(updates * case.micro_batches * case.rows)
        begin = time.perf_counter()
        model.fit(x[part], y[part], batch_size=case.rows, shuffle=False, verbose=0)
        walls.append(time.perf_counter() - begin)

    def in_updates() -> float:
        seconds = strategy.statistics().pipeline.seconds
        return seconds.total / sum(walls) if seconds is not None else 0.0

    fit(1)  # compiles
    walls.clear()
    cases: dict[str, Callable[[], object]] = {
        f"{role} {n}": functools.partial(fit, n) for n in case.updates
    }
    if role == "pipeline":
        cases |= {f"part {name}": functools.partial(part, strategy, name) for name in PARTS}
        cases["in updates"] = in_updates
        cases["parameters"] = lambda: float(model.count_params())
    workers.serve(cases)


def part(strategy: millrace.Strategy, name: str) -> float:
    """Returns the share of the updates' time that went to one part, in this process."""
    seconds = strategy.statistics().pipeline.seconds
    if seconds is None:
        return 0.0
    return seconds.parts[name] / seconds.total


def measure(case: Case, rounds: int, torch_python: str | None) -> list[str]:
    """Prints the times of one case, and returns its ratios as lines."""
    with _started(case, ("pipeline", "alone"), torch_python) as groups:
        times = _alternate(groups, rounds, case.updates)
        parts = {name: groups["pipeline"].tell(f"part {name}") for name in PARTS}
        in_updates = groups["pipeline"].tell("in updates")
        about = groups["torch"].about if torch_python else ""
    print(f"{case.name}; a step is an update.  {about}", flush=True)
    for (name, updates), values in times.items():
        harness.row(f"{name}, {updates} in a fit", values, updates)
    for index in range(STAGES):
        shares = ", ".join(f"{name} {each[index]:.1%}" for name, each in parts.items())
        print(f"  process {index}: {shares}; these are {in_updates[index]:.1%} of its fits")
    update = {name: _per_update(times, name) for name, _ in times}
    for name, values in update.items():
        harness.row(f"{name}, without the fit", values, 1)
    stretch = (case.micro_batches + STAGES - 1) / case.micro_batches
    ideal = [seconds * stretch for seconds in update["stage alone"]]
    lines = [_share(f"{case.name}: share of ideal", ideal, update["pipeline"])]
    lines[0] += f"   claim >= {BAR}"
    lines.append(f"{_fit(case, times, update, 'pipeline')}   claim <= {FIT_BAR}")
    if torch_python:
        name, own = f"{case.name}: millrace / torch", update["pipeline"]
        _, line = harness.ratio(name, own, update["torch pipeline"])
        ideal = [seconds * stretch for seconds in update["torch stage alone"]]
        lines.append(f"{line}   claim <= {TORCH_BARS[case.kind]}x")
        name = f"{case.name}: torch's share of its ideal"
        lines.append(_share(name, ideal, update["torch pipeline"]))
        lines.append(_fit(case, times, update, "torch pipeline"))
    return lines


def against_torch(case: Case, rounds: int, torch_python: str) -> dict[str, list[float]]:
    """Prints the times of both pipelines, and returns the seconds of an update, ours first.

    Both must have the same number of parameters.
    """
    with _started(case, ("pipeline",), torch_python) as groups:
        own, *_ = groups["pipeline"].tell("parameters")  # of both stages, in each process
        if own != sum(groups["torch"].tell("parameters")):
            raise SystemExit(f"{case.name}: the stages of torch have other parameters.")
        times = _alternate(groups, rounds, case.updates)
        print(f"{case.name}; a step is an update.  {groups['torch'].about}", flush=True)
    for (name, updates), values in times.items():
        harness.row(f"{name}, {updates} in a fit", values, updates)
    return {
        "millrace": _per_update(times, "pipeline"),
        "torch.distributed.pipelining": _per_update(times, "torch pipeline"),
    }


@contextlib.contextmanager
def _started(
    case: Case, roles: tuple[str, ...], torch_python: str | None
) -> Iterator[dict[str, workers.Workers]]:
    """Starts two processes for each role and for torch, waits for them, and ends them."""
    here, folder = os.path.abspath(__file__), os.path.dirname(os.path.abspath(__file__))
    cores = sorted(os.sched_getaffinity(0))
    pair = (cores[0], cores[-1])
    groups = {
        role: workers.Workers([here, "worker", role, *case.words, workers.free_address()], pair)
        for role in roles
    }
    if torch_python:
        peer = [os.path.join(folder, "torchpeer.py"), *case.words, workers.free_address()]
        groups["torch"] = workers.Workers(peer, pair, torch_python)
    try:
        for group in groups.values():
            group.wait()
        yield groups
    finally:
        for group in groups.values():
            group.stop()


Times = dict[tuple[str, int], list[float]]
"""Seconds of each round, by name and number of updates in a fit."""


def _alternate(groups: dict[str, workers.Workers], rounds: int, updates: tuple[int, ...]) -> Times:
    """Runs all cases in turn. A pipeline takes as long as its slower process."""

    def pipeline(group: str, updates: int) -> float:
        role = "pipeline" if group != "torch" else "torch pipeline"
        return max(groups[group].tell(f"{role} {updates}"))

    def stage(group: str, updates: int) -> float:
        role = "alone" if group != "torch" else "torch alone"
        return statistics.mean(groups[group].tell(f"{role} {updates}"))

    turns = {"pipeline": (pipeline, "pipeline")}
    if "torch" in groups:
        turns["torch pipeline"] = (pipeline, "torch")
    if "alone" in groups:
        turns["stage alone"] = (stage, "alone")
        if "torch" in groups:
            turns["torch stage alone"] = (stage, "torch")
    times: Times = {(name, number): [] for name in turns for number in updates}
    for turn in range(rounds + 1):
        names = list(turns) if turn % 2 == 0 else list(reversed(turns))
        for number in updates if turn else (1,):  # the first round warms up
            for name in names:
                function, group = turns[name]
                seconds = function(group, number)
                if turn:
                    times[name, number].append(seconds)
    return times


def _per_update(times: Times, name: str) -> list[float]:
    """Returns the seconds of an update, without those of a fit."""
    numbers = sorted(number for each, number in times if each == name)
    few, many = numbers[0], numbers[-1]
    pairs = zip(times[name, few], times[name, many], strict=True)
    return [(long - short) / (many - few) for short, long in pairs]


def _fit(case: Case, times: Times, update: dict[str, list[float]], name: str) -> str:
    """Returns a line with the milliseconds of a fit besides its updates."""
    few = min(number for each, number in times if each == name)
    pairs = zip(times[name, few], update[name], strict=True)
    costs = sorted(1e3 * (seconds - few * one) for seconds, one in pairs)
    middle, spread = statistics.median(costs), f"{costs[0]:.1f}-{costs[-1]:.1f}, n={len(costs)}"
    return f"{case.name}: cost of a fit, {name} = {middle:.1f} ms ({spread})"


def _share(name: str, ideal: list[float], real: list[float]) -> str:
    shares = sorted(a / b for a, b in zip(ideal, real, strict=True))
    best = min(ideal) / min(real)  # least disturbed by others on the machine
    middle = statistics.median(shares)
    spread = f"{shares[0]:.3f}-{shares[-1]:.3f}, n={len(shares)}; of the best times {best:.3f}"
    return f"{name} = {middle:.3f} ({spread})"


def _torch_python(given: str | None) -> str | None:
    """Returns a Python that has torch."""
    if not given:
        return sys.executable if importlib.util.find_spec("torch") else None
    has = subprocess.run([given, "-c", "import torch.distributed.pipelining"], check=False)
    return given if has.returncode == 0 else None


def main() -> None:
    """Runs all cases and prints the ratios last."""
    options = harness.arguments(
        __doc__,
        torch_python="a Python with torch, for the peer; by default this one, if it has torch",
        updates="updates of the fits, such as 1,6,50",
    )
    harness.header("A pipeline of two stages in two processes, one core each")
    torch_python = None if options.small else _torch_python(options.torch_python)
    if torch_python is None:
        print("The peer is left out: " + ("--small." if options.small else "no torch here."))
    lines = []
    for case in SMALL if options.small else CASES:
        if options.updates:
            case = replace(case, updates=tuple(map(int, options.updates.split(","))))
        if options.only in case.name:
            lines += measure(case, options.rounds, torch_python)
    print()
    print("\n".join(lines))


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        role, *words, address, index = sys.argv[2:]
        worker(role, Case.read(*words), address, int(index))
    else:
        main()
