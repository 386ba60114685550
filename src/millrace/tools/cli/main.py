"""The command `millrace`.

    millrace simulate    draws the schedule of a pipeline, with its bubble and its memory
    millrace launch      runs a script as several processes on this machine
    millrace report      writes the page of a run, and prints its summary
    millrace compile-log shows what a run compiled, how long it took, and why
    millrace plan        how a script can train on devices that are not here
    millrace memory      what its training takes there
    millrace checkpoint  lists and verifies the checkpoints of a training

Other distributions add commands: entry points of the group "millrace.commands".

Drawings and tables are plain ASCII, with colors on a terminal.
"""

import importlib.metadata
import os
import platform
from collections import Counter
from typing import Any

import click
import jax

from millrace.compilation.explain.key import versions
from millrace.errors import MillraceError
from millrace.tools.cli.checkpoint import checkpoint_command
from millrace.tools.cli.compile_log import compile_log_command
from millrace.tools.cli.launch import LaunchOptions, launch
from millrace.tools.cli.report import report_command
from millrace.tools.cli.simulate import simulate_command
from millrace.tools.cli.types import as_options, launch_options


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


def _print_versions(context: click.Context, _: click.Parameter, is_asked: bool) -> None:
    if not is_asked or context.resilient_parsing:
        return
    try:
        kinds = Counter(f"{each.platform} ({each.device_kind})" for each in jax.devices())
        devices = ", ".join(f"{count} x {kind}" for kind, count in kinds.items())
    except Exception as error:  # of JAX, such as for a driver too old: it belongs into the report
        devices = repr(error)
    found = versions()
    click.echo(f"millrace {found.pop('millrace')}")
    click.echo(", ".join(f"{name} {version}" for name, version in found.items()))
    click.echo(f"{platform.platform()}; devices: {devices}")
    context.exit()


@click.group(cls=Commands)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_versions,
    help="Show the versions and devices that a bug report needs.",
)
def main() -> None:
    """Run, inspect and port programs that use millrace."""


for _command in (checkpoint_command, compile_log_command, report_command, simulate_command):
    main.add_command(_command)

for _entry in importlib.metadata.entry_points(group="millrace.commands"):
    main.add_command(_entry.load())


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
