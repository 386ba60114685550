"""A pipeline over two processes, compared with the ideal time and with PyTorch's pipeline.

Claims. With 16 micro-batches an update takes at most 1 / 0.95 of the ideal time, and at most 0.75x
of `torch.distributed.pipelining` (Schedule1F1B over gloo) on the same stages.

    core 0   stage 0  F0 F1 F2       B0 ...       ideal = stage alone * (m + p - 1) / m
    core 1   stage 1     F0 B0 F1 B1 ...          m micro-batches, p = 2 stages

The stage alone is one process on one core that trains the layers of a stage with the same
accumulation, without a pipeline. It computes the gradient of its input, as the last stage does. Two
such processes run at the same time, to share the machine as the two stages do. Rounds of the
pipeline, the stage alone and the peer alternate.

The peer needs a Python with torch: `--torch-python PATH`.
"""

import functools
import importlib.util
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import millrace  # isort: skip
import keras
import numpy as np

import harness
import workers

SEQUENCE, HEADS, RATE = 64, 4, 0.01
BAR, TORCH_BAR = 0.95, 0.75
STAGES = 2


@dataclass(frozen=True)
class Case:
    """One stack of layers, of one size."""

    kind: str  # "tanh" or "transformer"
    width: int
    rows: int  # of a micro-batch
    micro_batches: int  # micro-batches in an update
    updates: int  # in one fit

    @property
    def name(self) -> str:
        """Name in the tables."""
        return f"{self.kind} {self.width}, {self.micro_batches} micro-batches of {self.rows}"

    @property
    def words(self) -> list[str]:
        """The case as arguments of a worker."""
        return [self.kind, *map(str, (self.width, self.rows, self.micro_batches, self.updates))]

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one row."""
        return (SEQUENCE, self.width) if self.kind == "transformer" else (self.width,)


CASES = (
    Case("tanh", 512, 64, 16, 6),
    Case("tanh", 512, 64, 32, 3),
    Case("transformer", 256, 4, 16, 1),
    Case("transformer", 256, 4, 32, 1),
)
SMALL = (Case("tanh", 64, 8, 4, 2), Case("transformer", 32, 1, 4, 1))


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
        steps = case.micro_batches * case.updates
        model.compile(keras.optimizers.SGD(RATE), "mse", steps_per_execution=steps)
    random = np.random.default_rng(0)
    x, y = (
        random.standard_normal((steps * case.rows, *case.shape), dtype=np.float32) for _ in range(2)
    )
    fit = functools.partial(model.fit, x, y, batch_size=case.rows, shuffle=False, verbose=0)
    fit()  # compiles
    workers.serve({role: fit})


def measure(case: Case, rounds: int, torch_python: str | None) -> list[str]:
    """Prints the times of one case, and returns its ratios as lines."""
    here, folder = os.path.abspath(__file__), os.path.dirname(os.path.abspath(__file__))
    cores = sorted(os.sched_getaffinity(0))
    pair = (cores[0], cores[-1])
    groups = {
        role: workers.Workers([here, "worker", role, *case.words, workers.free_address()], pair)
        for role in ("pipeline", "alone")
    }
    if torch_python:
        peer = [os.path.join(folder, "torchpeer.py"), *case.words, workers.free_address()]
        groups["torch"] = workers.Workers(peer, pair, torch_python)
    try:
        for group in groups.values():
            group.wait()
        times = _alternate(groups, rounds)
    finally:
        for group in groups.values():
            group.stop()
    about = groups["torch"].about if torch_python else ""
    print(f"{case.name}, {case.updates} updates; a step is an update.  {about}")
    for name, values in times.items():
        harness.row(name, values, case.updates)
    stretch = (case.micro_batches + STAGES - 1) / case.micro_batches
    ideal = [seconds * stretch for seconds in times["stage alone"]]
    lines = [_share(f"{case.name}: share of ideal", ideal, times["pipeline"])]
    lines[0] += f"   claim >= {BAR}"
    if torch_python:
        name, own = f"{case.name}: millrace / torch", times["pipeline"]
        _, line = harness.ratio(name, own, times["torch pipeline"])
        ideal = [seconds * stretch for seconds in times["torch stage alone"]]
        lines.append(f"{line}   claim <= {TORCH_BAR}x")
        name = f"{case.name}: torch's share of its ideal"
        lines.append(_share(name, ideal, times["torch pipeline"]))
    return lines


def _alternate(groups: dict[str, workers.Workers], rounds: int) -> dict[str, list[float]]:
    """Runs all cases in turn. A pipeline takes as long as its slower process."""

    def pipeline(group: str) -> float:
        return max(groups[group].tell("pipeline"))

    def stage(group: str) -> float:
        return statistics.mean(groups[group].tell("alone"))

    turns = {"pipeline": (pipeline, "pipeline"), "stage alone": (stage, "alone")}
    if "torch" in groups:
        turns |= {"torch pipeline": (pipeline, "torch"), "torch stage alone": (stage, "torch")}
    times: dict[str, list[float]] = {name: [] for name in turns}
    for turn in range(rounds + 1):
        names = list(turns) if turn % 2 == 0 else list(reversed(turns))
        for name in names:
            function, group = turns[name]
            seconds = function(group)
            if turn:  # the first round warms up
                times[name].append(seconds)
    return times


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
    )
    harness.header("A pipeline of two stages in two processes, one core each")
    torch_python = None if options.small else _torch_python(options.torch_python)
    if torch_python is None:
        print("The peer is left out: " + ("--small." if options.small else "no torch here."))
    lines = []
    for case in SMALL if options.small else CASES:
        if options.only in case.name:
            lines += measure(case, options.rounds, torch_python)
    print()
    print("\n".join(lines))


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        role, kind, *sizes, address, index = sys.argv[2:]
        worker(role, Case(kind, *map(int, sizes)), address, int(index))
    else:
        main()
