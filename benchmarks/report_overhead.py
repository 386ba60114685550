"""One epoch of fit with the records of the run written, and one without.

Claim, for small and medium models, executions of one step and of many: at most 1.03x the time of
the same training without records. Records of executions, epochs and feeds are on; the page is
written after the time that is measured. No peer: Keras leaves no records.

Two rows explain the ratio: records without the traces of chosen updates, and a second model without
records, whose ratio to the first one is what the machine adds.
"""

import atexit
import contextlib
import pathlib
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest import mock

import millrace  # isort: skip
import keras
import numpy as np

import harness
from millrace.run.timing.tracer import Tracer
from millrace.tools.recording.run import RecordedRun

CLAIM = 1.03


@dataclass(frozen=True)
class Size:
    """One model at one size."""

    name: str
    width: int
    batch: int
    steps: int  # of an epoch
    steps_per_execution: int

    def model(self) -> keras.Model:
        """Returns the compiled model, with the same weights each time."""
        keras.utils.set_random_seed(0)
        hidden = [keras.layers.Dense(self.width, "relu") for _ in range(3)]
        layers = [keras.Input((self.width,)), *hidden, keras.layers.Dense(10)]
        model = keras.Sequential(layers, name="mlp")
        model.compile("adam", "mse", steps_per_execution=self.steps_per_execution)
        return model


SIZES = (
    Size("mlp 32, batch 32, executions of 1", 32, 32, 300, 1),
    Size("mlp 32, batch 32, executions of 100", 32, 32, 5000, 100),
    Size("mlp 256, batch 128, executions of 1", 256, 128, 60, 1),
    Size("mlp 256, batch 128, executions of 50", 256, 128, 100, 50),
)


def without_pages(strategy: millrace.Strategy) -> None:
    """Leaves the page to the end of the process: it is written after a loop, not within a step."""
    run: RecordedRun | None = strategy._totals.recorders._run  # type: ignore[union-attr]
    if run is not None:
        run.page = None


def without_traces() -> contextlib.AbstractContextManager[Any]:
    """Makes every tracer choose no update."""
    return mock.patch.object(Tracer, "begin", return_value=False)


def measure(size: Size, rounds: int, directory: pathlib.Path, share: float) -> list[str]:
    """Prints the rows of one model and returns its ratios as lines."""
    steps = max(int(size.steps * share) // size.steps_per_execution, 1) * size.steps_per_execution
    random = np.random.default_rng(0)
    x = random.standard_normal((size.batch * steps, size.width), "float32")
    y = random.standard_normal((len(x), 10), "float32")

    def fit(report_dir: pathlib.Path | None = None, *, traces: bool = True) -> Callable[[], Any]:
        strategy = millrace.Strategy(devices=1, report_dir=report_dir)
        without_pages(strategy)
        model = strategy.attach(size.model())

        def run() -> list[Any]:
            with contextlib.nullcontext() if traces else without_traces():
                model.fit(x, y, batch_size=size.batch, shuffle=False, verbose=0)
            return [variable.value for variable in model.trainable_variables]

        return run

    cases = {
        "without records": fit(),
        "without records, again": fit(),
        "with records, no traces": fit(directory / f"{size.name}, no traces", traces=False),
        "with records": fit(directory / size.name),
    }
    times = harness.paired(cases, rounds)
    print(f"{size.name}: {steps} steps")
    for name, values in times.items():
        harness.row(name, values, steps)
    written = sum(file.stat().st_size for file in (directory / size.name).iterdir())
    print(f"  {written / 1000:.0f} KB of records\n")
    without = times.pop("without records")
    lines = [
        harness.ratio(f"{size.name}: {name} / without", values, without)[1]
        for name, values in times.items()
    ]
    lines[-1] += f"   claim <= {CLAIM}x"
    return lines


def main() -> None:
    """Runs all models and prints the ratios last."""
    options = harness.arguments(__doc__, rounds=101)
    harness.header("Records of a run: time per step inside fit")
    directory = pathlib.Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, directory)  # before a run is: it ends after the run has
    share = 0.2 if options.small else 1.0
    lines = [
        line
        for size in SIZES
        if options.only in size.name
        for line in measure(size, options.rounds, directory, share)
    ]
    print("\n".join(lines))


if __name__ == "__main__":
    main()
