"""The command `millrace simulate`: a drawing of a schedule, or the parts of the time of an update.

1f1b: 4 stages, 8 micro-batches       up to 100,000 forwards drawn
stage 0 |F0 F1 F2 F3 ...              more, or with --summary, only the numbers
work    24   72.7%
bubble   9   27.3%
"""

from dataclasses import dataclass
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from millrace.base.options import default_devices
from millrace.base.records.timeline import Timeline, in_colors
from millrace.compilation.executables.progress import search
from millrace.errors import OptionError
from millrace.run.schedules.table import SCHEDULES, make_schedule
from millrace.run.schedules.task import Pass
from millrace.run.schedules.text import grid, write
from millrace.run.schedules.textbook import textbook_bubble
from millrace.run.schedules.update_time import UpdateTime, update_time
from millrace.tools.cli.simulated_costs import CostOptions, cost_options
from millrace.tools.reports.run_costs import RunCosts

_MAX_DRAWN = 100_000  # forwards: stages x micro-batches
_MAX_FORWARDS = 2**18  # 256 stages and 1,024 micro-batches: half a minute


@dataclass(frozen=True, slots=True)
class AskedSizes:
    """The schedule that was asked for."""

    schedule: str  # as given
    stages: int
    micro_batches: int
    groups: int | None
    batch_serialization: int

    @property
    def name(self) -> str:
        """The key in `SCHEDULES`, if it is one."""
        return self.schedule.lower()

    @property
    def forwards(self) -> int:
        """Number of forwards in an update."""
        return self.stages * self.micro_batches

    @property
    def on_groups(self) -> tuple[int, ...]:
        """The device group of each stage."""
        if self.groups is not None:
            return tuple(stage % self.groups for stage in range(self.stages))
        return default_devices(self.schedule, self.stages, self.batch_serialization)


@click.command("simulate")
@click.option(
    "--stages", type=click.IntRange(1), help="Stages of the pipeline.  [default: of --costs]"
)
@click.option(
    "--micro-batches",
    type=click.IntRange(1),
    help="Micro-batches in one update.  [default: of --costs]",
)
@click.option(
    "--schedule",
    help=f"One of {', '.join(SCHEDULES)}; or the name of a file.  [default: 1f1b, or of --costs]",
)
@click.option(
    "--groups", type=click.IntRange(1), help="Device groups; only for the schedule looped."
)
@click.option(
    "--batch-serialization",
    default=1,
    type=click.IntRange(1),
    help="Micro-batches that a stage runs before the next stage starts; only for the schedule "
    "sequential.",
    show_default=True,
)
@cost_options
@click.option(
    "--summary",
    is_flag=True,
    help=f"Print only the numbers, as for more than {_MAX_DRAWN:,} forwards.",
)
@click.option("--text", is_flag=True, help="Print only the tasks, in the format of schedule files.")
def simulate_command(
    stages: int | None,
    micro_batches: int | None,
    schedule: str | None,
    groups: int | None,
    batch_serialization: int,
    summary: bool,
    text: bool,
    **options: Any,
) -> None:
    """Draw a pipeline schedule, with its idle time and memory, and where its time goes.

    A schedule file has one line for each device group, with its tasks, such as "0F0 0F1 0B0 0B1".
    All times are in one unit, such as seconds. Up to 256 stages with 1,024 micro-batches.
    """
    costs = CostOptions(**options)
    run = costs.run()
    sizes = _sizes(run, stages, micro_batches, schedule, groups, batch_serialization)
    is_drawn = sizes.forwards <= _MAX_DRAWN and not summary
    _check(sizes, must_draw=text)
    with search("simulating") as tick:
        tasks = make_schedule(
            sizes.schedule,
            sizes.stages,
            sizes.micro_batches,
            sizes.on_groups,
            sizes.batch_serialization,
        )
        result = update_time(
            tasks,
            costs.of(sizes.stages, run),
            lambda number, runs: tick(f"simulation {number} of {runs}"),
        )
    if text:
        click.echo(write(tasks))
        return
    console = _console(sizes, run)
    if is_drawn:
        console.print(in_colors(grid(result.timeline, width=console.width)))
        console.print("\nF forward, B backward, I and W its halves for inputs and weights\n")
    _print_numbers(console, sizes, result, costs.of(sizes.stages, run).tasks)
    console.print(_table(result.timeline) if is_drawn else _in_flight(result.timeline))


def _sizes(
    run: RunCosts | None,
    stages: int | None,
    micro_batches: int | None,
    schedule: str | None,
    groups: int | None,
    batch_serialization: int,
) -> AskedSizes:
    if run is not None:
        stages = run.stages if stages is None else stages
        micro_batches = run.micro_batches if micro_batches is None else micro_batches
        if schedule is None and run.schedule not in SCHEDULES:
            raise OptionError(
                f"The run's own schedule ({run.schedule!r}) is not in its records. Set --schedule "
                f"to its file, or to one of {', '.join(SCHEDULES)}."
            )
        schedule = run.schedule if schedule is None else schedule
        if schedule == "looped" and groups is None:
            groups = run.groups
    for name, value in (("stages", stages), ("micro-batches", micro_batches)):
        if value is None:
            raise click.UsageError(f"Missing option '--{name}', or a run as --costs.")
    assert stages is not None and micro_batches is not None  # noqa: S101, PT018 - checked above
    return AskedSizes(schedule or "1f1b", stages, micro_batches, groups, batch_serialization)


def _check(sizes: AskedSizes, must_draw: bool) -> None:
    stages, schedule, groups = sizes.stages, sizes.schedule, sizes.groups
    # One task after another takes as many rounds.
    is_small = must_draw or sizes.name == "sequential"
    most = _MAX_DRAWN if is_small else _MAX_FORWARDS
    if sizes.forwards > most:
        what = "forwards that can be drawn" if must_draw else "forwards of such a schedule"
        raise OptionError(
            f"--stages {stages} x --micro-batches {sizes.micro_batches} is more than the "
            f"{most:,} {what}. Set --micro-batches to "
            f"{max(most // stages, 1)} or fewer: more change the bubble very little."
        )
    if sizes.name == "looped" and (groups is None or groups > stages):
        raise OptionError(
            f"--schedule {schedule} has several stages on each device group. "
            f"Set --groups to a number below {stages}, such as {max(stages // 2, 1)}. "
            f"Received: {groups}."
        )
    if sizes.name != "looped" and groups is not None:
        raise OptionError(
            f"--groups {groups} has no effect on --schedule {schedule}, whose device groups follow "
            "from its stages. Remove it, or set --schedule looped."
        )
    if sizes.name != "sequential" and sizes.batch_serialization > 1:
        raise OptionError(
            f"--batch-serialization {sizes.batch_serialization} is possible with the schedule "
            f"sequential only. Received: --schedule {schedule}. Set --schedule sequential."
        )


def _console(sizes: AskedSizes, run: RunCosts | None) -> Console:
    console = Console(highlight=False, soft_wrap=True)
    title = f"{sizes.schedule}: {sizes.stages} stages, {sizes.micro_batches} micro-batches"
    console.print(title, markup=False)
    if run is not None:
        stages = "each of its" if sizes.stages == run.stages else "the mean of its"
        what = f"costs of {stages} {run.stages} stages, medians of {run.traces} updates"
        console.print(f"seconds; {what}", markup=False)
    console.print("")
    return console


def _print_numbers(console: Console, sizes: AskedSizes, result: UpdateTime, tasks: Any) -> None:
    """Prints the end, the bubble, and the parts of the time of the update."""
    timeline = result.timeline
    forward, backward = tasks[Pass.FORWARD], tasks[Pass.BACKWARD]
    bubble = None
    if len({*forward}) == len({*backward}) == 1:
        bubble = textbook_bubble(
            sizes.name,
            sizes.stages,
            sizes.micro_batches,
            timeline.num_groups,
            forward[0],
            backward[0],
        )
    console.print(f"end     {timeline.end:g}")
    formula = "" if bubble is None else f"   (textbook, with free transfers: {bubble:.1%})"
    console.print(f"bubble  {timeline.bubble:.1%}{formula}\n")
    table = Table("an update", "time", "share", box=None)
    for column in table.columns[1:]:
        column.justify = "right"
    for name, part in (*result.parts(), ("total", result.total)):
        if part or name in ("work", "bubble"):
            share = part / result.total if result.total else 0.0
            table.add_row(name, f"{part:g}", f"{share:.1%}")
    console.print(table)
    console.print("")


def _in_flight(timeline: Timeline) -> str:
    peaks = timeline.peak_in_flight
    most, least = max(peaks), min(peaks)
    return (
        f"activation sets at the peak: {most} on group {peaks.index(most)}, "
        f"{least} on group {peaks.index(least)}"
    )


def _table(timeline: Timeline) -> Table:
    table = Table("group", "stages", "idle", "activation sets: peak", "of each stage", box=None)
    for group, idle in enumerate(timeline.idle):
        stages = sorted({span.stage for span in timeline.spans if span.group == group})
        table.add_row(
            str(group),
            ", ".join(map(str, stages)),
            f"{idle:g}",
            str(timeline.peak_in_flight[group]),
            ", ".join(str(timeline.in_flight[stage]) for stage in stages),
        )
    return table
