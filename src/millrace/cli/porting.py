"""The commands `millrace port` and `millrace run`, about programs for the IPU.

A program may set the environment before it imports `ipu`, which reads it: `run` must not do so.
"""

import importlib
import os
import pathlib
import traceback
from types import TracebackType

import click

from millrace.cli.types import check_script
from millrace.porting.serve import run_script

_NOT_SOURCE = (".pyc", ".pyz", ".zip")  # which Python runs, too


@click.command("run", context_settings={"allow_interspersed_args": False})
@click.argument("script", type=click.Path(exists=True, dir_okay=False))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def run_command(context: click.Context, script: str, arguments: tuple[str, ...]) -> None:
    """Runs an IPU program for TensorFlow as it is.

    `import tensorflow`, `from tensorflow.python import ipu`, `keras.ipu` and
    `ipu_tensorflow_addons` give modules of millrace; nothing of them needs to be installed. The
    script's exit status is passed on, and its errors are shown as Python shows them.
    """
    if not script.endswith(_NOT_SOURCE):
        check_script(script)
    try:
        run_script(script, arguments)
    except Exception as error:  # as Python would: with the script's own frames
        error.__traceback__ = _of_script(error.__traceback__, script)
        traceback.print_exception(error)
        context.exit(1)


@click.command("port")
@click.argument("scripts", nargs=-1, required=True, type=click.Path(path_type=pathlib.Path))
@click.pass_context
def port_command(context: click.Context, scripts: tuple[pathlib.Path, ...]) -> None:
    """Says what of programs for the IPU will not carry over, and what to write instead.

    Nothing is run. Exits with 0 if nothing stands in the way, with 1 if something does, and with 2
    if a file cannot be read. What is marked `runs as it is` could be said better, and need not.
    """
    context.exit(importlib.import_module("millrace.porting.show").show_findings(scripts))


def _of_script(trace: TracebackType | None, script: str) -> TracebackType | None:
    """Returns a traceback from the script on; all of it if the script has no part in it."""
    here = trace
    while here is not None and not _is_file(here.tb_frame.f_code.co_filename, script):
        here = here.tb_next
    return here or trace


def _is_file(name: str, script: str) -> bool:
    return os.path.abspath(name) == os.path.abspath(script)


COMMANDS = (port_command, run_command)
