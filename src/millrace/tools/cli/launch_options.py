"""Options of the commands that start the processes of a run."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from millrace.tools.cli.types import FiniteRange

Command = TypeVar("Command", bound=Callable[..., Any])


def launch_options(command: Command) -> Command:
    """Adds `timeout`, `restarts` and `no_pin` to the parameters of a command."""
    options = (
        click.option(
            "--timeout",
            default=30.0,
            type=FiniteRange(0, min_open=True),
            help="Seconds that processes have to end, after one has failed, SIGTERM or Ctrl-C.",
            show_default=True,
        ),
        click.option(
            "--restarts",
            default=0,
            type=click.IntRange(0),
            help="Times that all processes are started again after one has failed.",
            show_default=True,
        ),
        click.option("--no-pin", is_flag=True, help="Let every process use all cores."),
    )
    for option in reversed(options):
        command = option(command)
    return command
