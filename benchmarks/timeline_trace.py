"""Traces of updates: what they cost, and how well a simulation of the schedule explains them.

Claims. Training with records and traces takes at most 1.03x the time of training without, in the
median of paired rounds. The simulated twin of a measured update of two processes, one core each,
ends within 5 % of the measured end, in the median over updates, for 1f1b and gpipe.

    core 0   stage 0  F0 F1 F2       B0 ...       measured: run/timing/measurement.py
    core 1   stage 1     F0 B0 F1 B1 ...          simulated: tools/reports/twin.py

The two runs of a round train the same model, one with a report directory and one without; each is
a strategy in the same pinned processes, and their order alternates. A fit has 16 updates, of which
update 0, 1, 2, 4 and 8 leave a trace: far more than in a long training, where traces get rarer. (A
model in one piece has 256 updates with 9 traces.)

Beside the twin, whose tasks have mean durations, is the same simulation with the duration of each
task itself: the difference between the two is what the variation of the tasks costs.
"""

import functools
import os
import shutil
import statistics
import sys
import tempfile
from dataclasses import dataclass
from typing import Any

import millrace  # isort: skip
import keras
import numpy as np

import harness
import pipeline_processes
import workers
from millrace.base.records.trace import ExecutionTrace
from millrace.run.schedules.dependencies import dependencies
from millrace.run.schedules.simulate import simulate
from millrace.run.schedules.task import Pass, Task
from millrace.tools.reports.twin import (
    SAMPLE,
    schedule_of,
    simulated_twin,
    waited_transfers,
)

BAR, TWIN_BAR = 1.03, 0.05
STAGES, UPDATES = 2, 16


@dataclass(frozen=True)
class Case:
    """A pipeline, or a model in one piece, of one size."""

    kind: str  # "tanh" or "transformer"
    schedule: str  # "whole" for a model in one piece
    width: int
    rows: int  # of a micro-batch
    micro_batches: int

    @property
    def name(self) -> str:
        """Name in the tables."""
        return f"{self.schedule} {self.kind} {self.width}"

    @property
    def words(self) -> list[str]:
        """The case as arguments of a worker."""
        return [self.kind, self.schedule, *map(str, (self.width, self.rows, self.micro_batches))]

    @property
    def stack(self) -> pipeline_processes.Case:
        """The layers."""
        return pipeline_processes.Case(
            self.kind, self.width, self.rows, self.micro_batches, UPDATES
        )


CASES = (
    Case("tanh", "1f1b", 512, 64, 16),
    Case("tanh", "gpipe", 512, 64, 16),
    Case("transformer", "1f1b", 128, 4, 16),
    Case("transformer", "gpipe", 128, 4, 16),
    Case("tanh", "whole", 512, 64, 1),
    Case("tanh", "whole", 64, 8, 1),
)
SMALL = (Case("tanh", "1f1b", 64, 8, 4), Case("tanh", "whole", 32, 8, 1))


def make_model(case: Case) -> keras.Model:
    """Returns the pipeline, or the layers of one of its stages as a model in one piece."""
    if case.schedule == "whole":
        inputs = keras.Input(case.stack.shape)
        model = keras.Model(inputs, pipeline_processes.stage_layers(case.stack, inputs))
    else:
        model = pipeline_processes.pipelined(case.stack)
        model.set_pipelining_options(pipeline_schedule=case.schedule)
    return model


def worker(case: Case, directory: str, address: str, index: int) -> None:
    """Trains with and without records, on the parent's command."""
    is_whole = case.schedule == "whole"
    if not is_whole:
        millrace.distributed.initialize(address, STAGES, index)
    updates = UPDATES * (16 if is_whole else 1)
    steps = case.micro_batches * updates
    random = np.random.default_rng(0)
    x, y = (
        random.standard_normal((steps * case.rows, *case.stack.shape), dtype=np.float32)
        for _ in range(2)
    )
    fits: dict[str, Any] = {}
    for name, report_dir in (("off", None), ("on", directory)):
        keras.utils.set_random_seed(0)
        with millrace.Strategy(report_dir=report_dir).scope():
            model = make_model(case)
            execution = 1 if is_whole else steps
            model.compile(keras.optimizers.SGD(0.01), "mse", steps_per_execution=execution)
        fits[name] = functools.partial(
            model.fit, x, y, batch_size=case.rows, shuffle=False, verbose=0
        )
        fits[name]()  # compiles
    workers.serve(fits)


def measure(case: Case, rounds: int) -> list[str]:
    """Prints the times of one case, and returns its ratios as lines."""
    cores = sorted(os.sched_getaffinity(0))
    pinned = cores[:1] if case.schedule == "whole" else (cores[0], cores[-1])
    directory = tempfile.mkdtemp(prefix="timeline-")
    command = [os.path.abspath(__file__), "worker", *case.words, directory, workers.free_address()]
    group = workers.Workers(command, pinned)
    times: dict[str, list[float]] = {"off": [], "on": []}
    try:
        group.wait()
        for turn in range(rounds + 1):
            for name in ("off", "on") if turn % 2 == 0 else ("on", "off"):
                seconds = max(group.tell(name))
                if turn:
                    times[name].append(seconds)
    finally:
        group.stop()
    updates = UPDATES * (16 if case.schedule == "whole" else 1)
    print(f"{case.name}; a step is an update.")
    for name, values in times.items():
        harness.row(f"traces {name}", values, updates)
    _, line = harness.ratio(f"{case.name}: traces on / off", times["on"], times["off"])
    lines = [f"{line}   claim <= {BAR}x"]
    if case.schedule != "whole":
        lines += twin_lines(case, directory)
    shutil.rmtree(directory)
    return lines


def twin_lines(case: Case, directory: str) -> list[str]:
    """Returns lines about the twins of all traces: their ends, and their bubbles."""
    traces = millrace.records.load(directory).traces
    found = [(trace, twin) for trace in traces if (twin := simulated_twin(trace)) is not None]
    ends = [twin.end / trace.timeline.end for trace, twin in found]
    own = [simulated_end(trace) / trace.timeline.end for trace, _ in found]
    bubble = statistics.median(trace.timeline.bubble for trace, _ in found)
    simulated = statistics.median(twin.bubble for _, twin in found)
    return [
        f"{case.name}: end simulated / measured = {spread(ends)}   claim {1 - TWIN_BAR:g}-"
        f"{1 + TWIN_BAR:g}x",
        f"{case.name}: the same with the duration of each task = {spread(own)}",
        f"{case.name}: bubble measured = {100 * bubble:.1f}%",
        f"{case.name}: bubble simulated = {100 * simulated:.1f}%",
    ]


def simulated_end(trace: ExecutionTrace) -> float:
    """Returns the end of a simulation in which each task takes as long as it did."""
    schedule = schedule_of(trace)
    waits = dependencies(schedule)
    durations = {
        Task(span.stage, Pass(span.kind), span.micro_batch): span.duration for span in trace.spans
    }
    transfer = statistics.fmean(waited_transfers(trace.spans[:SAMPLE], schedule, waits) or [0.0])
    return simulate(schedule, durations.__getitem__, transfer, waits).end


def spread(ratios: list[float]) -> str:
    """Returns the median with the smallest and the largest ratio."""
    middle = statistics.median(ratios)
    return f"{middle:.3f}x ({min(ratios):.3f}-{max(ratios):.3f}, n={len(ratios)})"


def main() -> None:
    """Runs all cases and prints the ratios last."""
    options = harness.arguments(__doc__)
    harness.header("Traces of updates: cost, and their simulated twins")
    lines = []
    for case in SMALL if options.small else CASES:
        if options.only in case.name:
            lines += measure(case, options.rounds)
    print()
    print("\n".join(lines))


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        kind, schedule, *sizes, directory, address, index = sys.argv[2:]
        worker(Case(kind, schedule, *map(int, sizes)), directory, address, int(index))
    else:
        main()
