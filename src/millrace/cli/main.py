"""The command `millrace`.

    millrace simulate    draws the schedule of a pipeline, with its bubble and its memory
    millrace launch      runs a script as several processes on this machine
    millrace benchmark   measures how fast a data set supplies batches
    millrace report      writes the page of a run, and prints its summary
    millrace compile-log shows what a run compiled, how long it took, and why
    millrace port        lists the parts of an IPU program that will not run
    millrace run         runs an IPU program unchanged
    millrace poprun      runs one as several processes, by the command line of an IPU
    millrace cache       shows or removes the executables that are cached on disk
    millrace checkpoint  lists, verifies and exports the checkpoints of a training

Drawings and tables are plain ASCII, with colors on a terminal.
"""

import os
import pathlib
from typing import Any

import click

from millrace.benchmark.command import benchmark_feed
from millrace.cli import cache_table
from millrace.cli import checkpoint as cli_checkpoint
from millrace.cli import compilation as cli_compilation
from millrace.cli import porting as cli_porting
from millrace.cli import report as cli_report
from millrace.cli.launch import LaunchOptions, launch
from millrace.cli.launch_options import launch_options
from millrace.cli.poprun import poprun_command
from millrace.cli.simulate import simulate_command
from millrace.cli.types import FiniteRange, as_options
from millrace.errors import MillraceError

TIME = FiniteRange(0, min_open=True)


class Commands(click.Group):
    """Prints millrace's own errors as messages, without a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command on the command line."""
        if os.environ.get("COLUMNS") == "0":  # in some editors' terminals: tables would vanish
            del os.environ["COLUMNS"]
        try:
            return super().invoke(ctx)
        except MillraceError as error:
            is_drawing = ctx.invoked_subcommand == "simulate"
            click.echo(f"Error: {as_options(str(error)) if is_drawing else error}", err=True)
            ctx.exit(2)


@click.group(cls=Commands)
@click.version_option(package_name="millrace")
def main() -> None:
    """Run, inspect and port programs that use millrace."""


for _command in (
    *cli_checkpoint.COMMANDS,
    *cli_compilation.COMMANDS,
    *cli_porting.COMMANDS,
    *cli_report.COMMANDS,
    poprun_command,
    simulate_command,
):
    main.add_command(_command)


@main.command("launch", context_settings={"allow_interspersed_args": False})
@click.option(
    "--processes", required=True, type=click.IntRange(1), help="Number of processes to start."
)
@click.option(
    "--devices-per-process",
    type=click.IntRange(1),
    help="Number of virtual CPU devices in each process.",
)
@launch_options
@click.argument("script", type=click.Path(exists=True, dir_okay=False))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def launch_command(
    context: click.Context,
    processes: int,
    devices_per_process: int | None,
    timeout: float,
    restarts: int,
    no_pin: bool,
    script: str,
    arguments: tuple[str, ...],
) -> None:
    """Run a script as several processes on this machine.

    The script must call millrace.distributed.initialize(). Each process is pinned to its own share
    of the cores. Process 0 prints to the terminal, each other process to a file. If one process
    fails, all of them end, and with --restarts all start again. SIGTERM and Ctrl-C go to each.
    """
    options = LaunchOptions(
        (script, *arguments),
        processes,
        devices_per_process,
        timeout,
        not no_pin,
        restarts=restarts,
    )
    context.exit(launch(options, lambda line: click.echo(line, err=True)))


@main.command("benchmark")
@click.option("--epochs", default=5, type=int, help="Number of epochs to time.", show_default=True)
@click.option("--elements", default=100, type=int, help="Batches per epoch.", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--infeed", is_flag=True, help="Also measure the data set through the infeed.")
@click.argument("dataset", metavar="MODULE:DATASET")
def benchmark_command(
    epochs: int, elements: int, as_json: bool, infeed: bool, dataset: str
) -> None:
    """Measure how fast a data set supplies batches.

    MODULE:DATASET names a variable, or a function without arguments, in a module or in a file.py.
    Modules may be in the current directory.
    """
    report = benchmark_feed(dataset, epochs, elements, infeed)
    if as_json:
        click.echo(report.as_json())
    else:
        report.print()


@main.group("cache")
def cache_command() -> None:
    """Show or remove the executables that are cached on disk."""


_directory = click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=pathlib.Path),
    help="Directory of the cache. The default is MILLRACE_CACHE_DIR, or else the user's cache.",
)
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@cache_command.command("list")
@_json
@click.option("--all", "everything", is_flag=True, help="Also list small programs of JAX itself.")
@_directory
def cache_list_command(as_json: bool, everything: bool, directory: pathlib.Path | None) -> None:
    """List the executables of models and functions.

    The most recently used come first. JSON output always lists all executables.
    """
    cache_table.show_entries(directory, as_json, everything)


@cache_command.command("stats")
@_json
@_directory
def cache_stats_command(as_json: bool, directory: pathlib.Path | None) -> None:
    """Print the number of executables, and their size."""
    cache_table.show_statistics(directory, as_json)


@cache_command.command("clear")
@click.option(
    "--older-than",
    "days",
    type=TIME,
    metavar="DAYS",
    help="Remove only executables that were not used for this number of days.",
)
@_directory
def cache_clear_command(days: float | None, directory: pathlib.Path | None) -> None:
    """Remove executables.

    Running processes keep the executables that they have loaded, and compile any others again.
    """
    cache_table.clear_entries(directory, days)
