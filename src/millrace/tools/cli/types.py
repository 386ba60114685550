"""Options and their types, and the console of tables, that several commands share."""

import math
import os
import re
from collections.abc import Callable
from typing import Any, TypeVar

import click
from rich.console import Console

_PIPE_WIDTH = 160  # characters of a line that does not go to a terminal


def table_console() -> Console:
    """Returns a console for tables, which are wider where they do not go to a terminal."""
    console = Console(highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        return Console(highlight=False, width=_PIPE_WIDTH)
    return console


class FiniteRange(click.FloatRange):
    """A number within bounds; unlike click's own type, it refuses nan and infinity."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Returns the number, or fails with the reason."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{number} is not a finite number.", param, ctx)
        return number


# The names of `make_schedule` and of a model's options, and those of `simulate`.
_OF_SIMULATE = (
    (r"\bgradient_accumulation_steps_per_replica=", "--micro-batches "),
    (r"\bnum_micro_batches=", "--micro-batches "),
    (r"\bnum_stages=", "--stages "),
    (r"\b(?:pipeline_)?schedule=", "--schedule "),
    (r" a function \(num_stages, num_micro_batches\) of your own;", ""),
)


def as_options(message: str) -> str:
    """Returns an error message about a schedule with the option names of `simulate`."""
    for name, option in _OF_SIMULATE:
        message = re.sub(name, option, message)
    return message


Command = TypeVar("Command", bound=Callable[..., Any])


def with_options(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Returns a decorator that adds several options to a command, in their order."""

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


launch_options = with_options(
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
