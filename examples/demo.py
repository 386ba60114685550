"""millrace in three steps: within a memory budget, cut in two, and faster. `make demo`.

The model and the data are those of `digits.py`. Every number is measured or compared in this run,
which fails if one is wrong.
"""

import os

os.environ["JAX_PLATFORMS"] = "cpu"  # which has two devices for the pipeline, on any machine

import digits  # isort: skip - the example beside this one; it makes JAX the backend of Keras
import millrace  # isort: skip

import argparse
import pathlib
import shutil
import statistics
import sys
from typing import NamedTuple

import keras
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from millrace.base.records.memory import bytes_text
from millrace.run.schedules.simulate import UNIT_COST, simulate
from millrace.run.schedules.table import make_schedule
from millrace.run.schedules.text import grid

KERAS_STEPS_PER_EXECUTION = (8, digits.STEPS)  # plain Keras runs at the faster of these
TIMED_EPOCHS = 10
PIPELINE_EPOCHS = 5
SCHEDULES = ("1f1b", "gpipe")
STAGES = [0, 0, 1, 1, 1]  # one per layer
BUDGET = "3MB"  # for all images as one batch
COLORS = {"F": "black on green", "B": "black on cyan"}

two_devices = millrace.Strategy(devices="cpu:2")  # before anything else uses JAX


class Bar(keras.callbacks.Callback):
    """One progress bar for the whole demo, which advances with every epoch of any fit."""

    def __init__(self, progress: Progress):
        super().__init__()
        self._progress = progress
        fits = 1 + len(KERAS_STEPS_PER_EXECUTION)
        epochs = fits * digits.EPOCHS + len(SCHEDULES) * PIPELINE_EPOCHS
        self._task = progress.add_task("", total=epochs)

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Advances the bar; Keras calls this."""
        self._progress.update(self._task, advance=1, refresh=True)

    def say(self, doing: str) -> None:
        """Shows the current activity beside the bar."""
        self._progress.update(self._task, description=doing, refresh=True)


def headline(console: Console, step: int, words: str) -> None:
    """Prints the headline of a step."""
    console.print(f"\n[bold]{step} of 3. {words}[/bold]\n")


class Trained(NamedTuple):
    """The model, trained with millrace and with plain Keras."""

    ours: digits.Contender
    seconds: digits.Seconds
    stock: list[digits.Contender]


def train(bar: Bar, data: digits.Digits) -> Trained:
    """Trains with millrace and with plain Keras."""
    bar.say("training with millrace")
    ours, seconds = digits.train_with_millrace(data, 0, bar)
    bar.say("training with plain Keras")
    stock = [digits.train_with_keras(data, 0, n, bar) for n in KERAS_STEPS_PER_EXECUTION]
    return Trained(ours, seconds, stock)


def faster(
    console: Console, bar: Bar, data: digits.Digits, trained: Trained, rounds: int
) -> str | None:
    """Times both. Returns an error message, or None."""
    bar.say("timing both")
    ours, seconds, stock = trained
    fits = [lambda c=c: digits.fit(c.model, data, TIMED_EPOCHS) for c in (ours, *stock)]
    our_times, *stock_times = digits.in_turn(fits, rounds)
    best_times = min(stock_times, key=statistics.median)
    best = stock[stock_times.index(best_times)]
    pace = digits.Pace(our_times, best_times, TIMED_EPOCHS)
    headline(
        console,
        3,
        f"The digits, {pace.ratio:.2f} times as fast as plain Keras; accuracy on held-out digits "
        f"{ours.accuracy:.1%} and {best.accuracy:.1%}",
    )
    console.print(digits.report(ours, best, seconds, pace))
    tried = " and ".join(map(str, KERAS_STEPS_PER_EXECUTION))
    console.print(
        f"Steps per second are medians of {rounds} alternating fits of {TIMED_EPOCHS} epochs, "
        f"after compilation; plain Keras at its faster steps_per_execution {tried} ({best.name})."
    )
    if ours.accuracy < digits.TARGET:
        return f"accuracy {ours.accuracy:.4f} is below {digits.TARGET}"
    return None


def train_pipeline(
    data: digits.Digits, schedule: str, *callbacks: keras.callbacks.Callback
) -> tuple[float, ...]:
    """Trains the model in two stages, and returns the loss of each epoch."""
    keras.utils.set_random_seed(0)
    with two_devices.scope():
        model = digits.build()
        model.set_pipeline_stage_assignment(STAGES)
        model.set_pipelining_options(
            gradient_accumulation_steps_per_replica=digits.ACCUMULATION, pipeline_schedule=schedule
        )
    digits.compile_model(model, digits.STEPS)
    digits.fit(model, data, PIPELINE_EPOCHS, *callbacks)
    return digits.contender(schedule, model, data).losses


def cut_in_two(
    console: Console,
    bar: Bar,
    data: digits.Digits,
    trained: Trained,
    output: pathlib.Path | None,
) -> str | None:
    """Trains the same model as a pipeline. Returns an error message, or None."""
    bar.say("training it in two stages")
    ours, stock = (
        contender.losses[:PIPELINE_EPOCHS] for contender in (trained.ours, trained.stock[0])
    )
    report = [] if output is None else [millrace.callbacks.Report(output / "report")]
    first, *others = SCHEDULES
    pipelines = [train_pipeline(data, first, bar, *report)]
    pipelines += [train_pipeline(data, schedule, bar) for schedule in others]
    columns = {"plain Keras": stock, "in one piece": ours}
    columns |= {f"2 stages, {s}": p for s, p in zip(SCHEDULES, pipelines, strict=True)}
    headline(console, 2, f"The same model in two stages, on two devices: {agreement(columns)}")

    table = Table("epoch", *columns, title="loss, with all digits of a float32")
    for epoch, values in enumerate(zip(*columns.values(), strict=True), start=1):
        table.add_row(str(epoch), *(f"{value:.9g}" for value in values))
    console.print(table)
    tasks = make_schedule("1f1b", 2, digits.ACCUMULATION, (0, 1))
    timeline = simulate(tasks, UNIT_COST)
    drawing = Text(grid(timeline), no_wrap=True)
    for letter, color in COLORS.items():
        drawing.highlight_regex(rf"\b{letter}[0-9]+-*", color)
    title = f"1f1b: 2 stages, {digits.ACCUMULATION} micro-batches"
    console.print(f"\n{title}: one update, where a backward takes as long as two forwards\n")
    console.print(drawing)
    console.print(
        f"\nbubble {timeline.bubble:.1%}. Both devices share this processor, so this shows equal "
        "numbers, not speed."
    )
    if len(set(pipelines)) > 1:
        return "the schedules of one pipeline should have equal losses, bit by bit"
    if not np.allclose(pipelines[0], ours, rtol=1e-6, atol=0):
        return "the losses in one piece and in two stages should agree to 1e-6"
    return None


def agreement(columns: dict[str, tuple[float, ...]]) -> str:
    """Describes the agreement of the losses."""
    first, *others = columns.values()
    if all(other == first for other in others):
        return "the same losses, to the last digit"
    furthest = max(np.max(np.abs(np.divide(other, first) - 1)) for other in others)
    return f"the same losses, to a relative {furthest:.0e}"


def in_memory(console: Console, bar: Bar) -> str | None:
    """Reports the memory for one batch of all images. Returns an error message, or None."""
    bar.say("planning memory")
    strategy = millrace.Strategy(devices=1)
    with strategy.scope():
        model = digits.build()
    digits.compile_model(model, steps_per_execution=2)
    rows = digits.STEPS * digits.MICRO_BATCH
    batch = ((rows, 64), "float32"), ((rows,), "int32")
    report = strategy.memory_report(model, batch, budget=BUDGET)
    fitting = [change for change in report.changes if change.fits]
    found = f"it needs {bytes_text(report.peak)}"
    if fitting:
        found += f", and with the change below {bytes_text(fitting[0].peak)}"
    headline(
        console, 1, f"All {rows:,} images as one batch in {BUDGET}? Before anything runs: {found}"
    )
    report.show(console)
    return None if fitting else f"there should be a change that fits {BUDGET}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="fewer timed fits")
    parser.add_argument("--output", type=pathlib.Path, help="directory for the picture")
    arguments = parser.parse_args()
    output: pathlib.Path | None = arguments.output
    if output is not None:
        shutil.rmtree(output / "report", ignore_errors=True)  # of an earlier demo

    console = Console(highlight=False)
    data = digits.load()
    columns = BarColumn(None), TextColumn("{task.description}")
    # Only the callback draws: the time of a drawing thread would count, too.
    with Progress(*columns, console=console, transient=True, auto_refresh=False) as progress:
        bar = Bar(progress)
        wrong = [in_memory(console, bar)]
        trained = train(bar, data)
        wrong.append(cut_in_two(console, bar, data, trained, output))
        wrong.append(faster(console, bar, data, trained, rounds=3 if arguments.small else 7))
    console.print(
        "\nRead next: README.md; docs/index.md, with a page and an example for each feature; "
        "examples/pipeline.py.",
        soft_wrap=True,
    )
    if output is not None:
        page = output / "report" / "report.html"
        console.print(f"\nThe report of the run in two stages: {page}", soft_wrap=True)
        if not page.is_file():
            wrong.append(f"there should be a report in {page}")
    for message in filter(None, wrong):
        console.print(f"[bold red]Wrong: {message}")
    return 1 if any(wrong) else 0


if __name__ == "__main__":
    sys.exit(main())
