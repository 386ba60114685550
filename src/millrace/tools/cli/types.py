"""Types of options, checks, and the console of tables, that several commands share."""

import math
import os
import pathlib
import re
from typing import Any

import click
from rich.console import Console

from millrace.errors import line_and_cause

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


def check_script(script: str) -> None:
    """Refuses a file that is not Python, with the line of the error."""
    try:
        compile(pathlib.Path(script).read_bytes(), script, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:  # ValueError: null bytes, on Python 3.11.2
        line, cause = line_and_cause(error)
        raise click.ClickException(
            f"{script}{line}: this is not a Python program: {cause}. Give a file of Python source."
        ) from None


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
