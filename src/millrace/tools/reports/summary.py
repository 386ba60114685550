"""A run in a few lines and tables: what `millrace report` prints, and what a notebook shows.

run      runs/7, ended
model    mlp: train on 2 stages, 640 steps in 20 executions, 12.3 s
time     compile 1.20 s (10 %), compute 11.1 s (90 %)
limit    compute: Steps took ...

stage 0 |F0--    B0----F1--B1----    |
stage 1 |    F0--B0----    F1--B1----|

program      peak       largest layers
operations   FLOPs      bytes      time
"""

import pathlib
from collections.abc import Iterator
from dataclasses import fields
from datetime import datetime

from rich.console import Console
from rich.table import Table
from rich.text import Text

from millrace.base.records.compilation import compile_totals
from millrace.base.records.loops import LoopRecord
from millrace.base.records.memory import bytes_text
from millrace.base.records.operations import OperationGroup
from millrace.base.records.printable import counted, printable
from millrace.base.records.run import RunRecords
from millrace.base.records.run import load as read_run
from millrace.base.records.table_text import plain_table
from millrace.tools.reports.limits import limits
from millrace.tools.reports.running import outcome_of, run_outcome, run_state
from millrace.tools.reports.seen import as_seen, last_seen

_MAX_LOOPS = 4
_MAX_LAYERS = 3  # of a program
_MAX_PROGRAMS = 12
_MAX_OWNERS = 8
_MODES = ("train", "test", "predict")


class Run(RunRecords):
    """The records of a run. They print as its summary."""

    __slots__ = ()

    def _print(self, console: Console) -> None:
        print_summary(self, console)


def load(directory: str | pathlib.Path) -> Run:
    """Reads the records of a run, also while it is running or after it was killed.

    Args:
        directory: of the run; of a directory that holds several runs, the one that began last.

    Raises:
        DataError: if there are no records, or they are of a version that is not known here.
    """
    run = read_run(directory)
    return Run(**{each.name: getattr(run, each.name) for each in fields(run)})


def print_summary(run: RunRecords, console: Console) -> None:
    """Prints what a run was, what limited it, its timeline, its memory and its operations."""
    facts = plain_table("", "")
    facts.columns[0].no_wrap = True
    for name, text in _facts(run):
        facts.add_row(name, Text(printable(text)))
    console.print(facts)
    timeline = run.timeline
    if timeline.spans:
        title = f"bubble {timeline.bubble:.1%} of an update of {1e3 * timeline.end:.3g} ms"
        console.print("", timeline.painted(console.width), title, sep="\n", soft_wrap=True)
    for table in (_memory(run), _operations(run)):
        if table.row_count:
            console.print("")
            console.print(table)


def _facts(run: RunRecords) -> Iterator[tuple[str, str]]:
    states = {
        "running": "it is running",
        "ended": "it has ended",
        "unknown": "not on this host" if run.processes else "no record of its processes",
    }
    state = states[run_state(run)]
    if run_outcome(run) == "killed":
        state = f"killed, last seen {datetime.fromtimestamp(last_seen(run)):%Y-%m-%d %H:%M:%S}"
    yield "run", f"{run.path} ({state})"
    for loop in run.loops[-_MAX_LOOPS:]:
        yield "loop", _loop(as_seen(run, loop), outcome_of(run, loop))
    if len(run.loops) > _MAX_LOOPS:
        yield "", f"and {len(run.loops) - _MAX_LOOPS} before them"
    devices = dict.fromkeys(device for each in run.processes for device in each.devices)
    devices.update(dict.fromkeys(device for each in run.loops for device in each.devices))
    if devices:
        yield "devices", ", ".join(devices)
    found = limits(run)
    if found.wall_seconds:
        parts = sorted(found.seconds.items(), key=lambda part: -part[1])
        shown = [(name, value) for name, value in parts if value >= 0.005]
        yield (
            "time",
            ", ".join(f"{name} {value:.2f} s ({found.shares[name]:.0%})" for name, value in shown),
        )
    yield "limit", f"{found.limit}: {found.advice}" if found.limit else found.advice
    totals = compile_totals(run.compilations)
    made = counted(totals.executables, "executable")
    yield "compiled", f"{made} in {totals.seconds:.2f} s added up, {totals.recompilations} again"
    if run.damaged:
        lines = ", ".join(f"{name}: {count}" for name, count in run.damaged.items())
        yield "damaged", f"lines that could not be read, by file: {lines}"


def _loop(loop: LoopRecord, outcome: str) -> str:
    where = [
        f"{number} {name}"
        for number, name in ((loop.stages, "stages"), (loop.replicas, "replicas"))
        if number > 1
    ]
    on = f" on {' and '.join(where)}" if where else ""
    process = f", process {loop.process}" if loop.process else ""
    time = f", {loop.seconds:.2f} s" if loop.seconds else ""
    least = "at least " if loop.outcome == "running" else ""
    outcome = "" if outcome == "finished" else f", {outcome}"
    error = f": {loop.error}" if loop.error else ""
    return (
        f"{loop.mode} of {loop.model or 'a model'}{on}{process}, "
        f"{least}{loop.epochs} epochs, {loop.steps:,} steps in {loop.executions:,} executions"
        f"{time}{outcome}{error}"
    )


def _memory(run: RunRecords) -> Table:
    table = plain_table("program", ">peak", "largest layers at the peak")
    programs = {
        (each.model, each.program, each.stage): each
        for each in run.memory_profiles
        if not each.is_trial
    }
    shown = sorted(programs.values(), key=lambda each: -each.peak.bytes)
    for each in shown[:_MAX_PROGRAMS]:
        layers = [f"{layer.layer} {bytes_text(layer.nbytes)}" for layer in each.peak.layers]
        texts = each.program, bytes_text(each.peak.bytes), ", ".join(layers[:_MAX_LAYERS])
        table.add_row(*(Text(printable(text)) for text in texts))
    return table


def _operations(run: RunRecords) -> Table:
    """Returns the costs of one call of each program of training, added up by layer or purpose."""
    programs = {
        (each.model, each.program, each.stage): each for each in run.operations
    }  # the last one of each program
    mode = next(
        (mode for mode in _MODES if any(each.program.startswith(mode) for each in run.operations)),
        "",
    )
    owners: dict[tuple[str, str], list[OperationGroup]] = {}
    for program in programs.values():
        if program.program.startswith(mode):
            for group in program.groups:
                owners.setdefault((group.owner, group.role), []).append(group)
    title = f"operations of {mode}" if mode else "operations"
    table = plain_table(title, "", ">count", ">GFLOP", ">moved", ">time")

    def cost(groups: list[OperationGroup]) -> tuple[float, float]:
        return sum(each.seconds or 0.0 for each in groups), sum(each.flops for each in groups)

    ordered = sorted(owners.items(), key=lambda item: cost(item[1]), reverse=True)
    # What is no layer, such as the optimizer, has a row however little it costs.
    layers = [item for item in ordered if item[0][1] == "layer"][:_MAX_OWNERS]
    for (owner, role), groups in ordered:
        if role == "layer" and (owner, role) not in dict(layers):
            continue
        seconds, flops = cost(groups)
        is_timed = any(each.seconds is not None for each in groups)
        table.add_row(
            *(Text(printable(text)) for text in (owner, "" if role == owner else role)),
            f"{sum(each.operations for each in groups):,}",
            f"{flops / 1e9:.3g}",
            bytes_text(sum(each.bytes for each in groups)),
            f"{1e3 * seconds:.3g} ms" if is_timed else "",
        )
    return table
