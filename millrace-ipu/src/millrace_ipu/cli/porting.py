"""The commands `millrace port` and `millrace run`, for IPU programs.

`run` must not import `ipu` itself, which reads the environment: the program may set that first.
"""

import importlib
import os
import pathlib
import sys
from types import TracebackType

import click

from millrace import distributed
from millrace.extend import Launched, ask_for_virtual
from millrace_ipu.cli.scripts import check_script
from millrace_ipu.porting.running.serve import run_script

_RELEASE = "MILLRACE_IPU_RELEASE"  # which `ipu/release.py` reads
_NOT_SOURCE = (".pyc", ".pyz", ".zip")  # Python runs these, too


@click.command("run", context_settings={"allow_interspersed_args": False})
@click.option(
    "--release",
    type=click.Choice(["2.4", "2.5", "2.6", "3.0", "3.1", "3.2", "3.3"]),
    help="Release of the IPU's software that the program was written for. 2.4 counts "
    "steps_per_execution over all replicas, later ones for each. [default: the newest]",
)
@click.option(
    "--devices",
    type=click.IntRange(1),
    help="Number of virtual CPU devices that JAX makes, on a machine without others. "
    "[default: those of the program's first configuration]",
)
@click.argument("script", type=click.Path(exists=True, dir_okay=False))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def run_command(
    context: click.Context,
    release: str | None,
    devices: int | None,
    script: str,
    arguments: tuple[str, ...],
) -> None:
    """Run an IPU program for TensorFlow unchanged.

    `import tensorflow`, `from tensorflow.python import ipu`, `keras.ipu` and
    `ipu_tensorflow_addons` import modules of millrace; none of these packages needs to be
    installed. The command has the exit status of the script, and prints its errors as Python does.
    """
    if not script.endswith(_NOT_SOURCE):
        check_script(script)
    if release is not None:
        os.environ[_RELEASE] = release
    if devices is not None:
        ask_for_virtual(devices)
    if Launched.exists():  # under `millrace poprun` or `millrace launch`
        distributed.initialize()
    try:
        run_script(script, arguments)
    except Exception as error:  # printed as Python does, from the script's own frames on
        error.__traceback__ = _of_script(error.__traceback__, script)
        # Python's own prints it, and that of a run of processes also tells the others.
        sys.excepthook(type(error), error, error.__traceback__)
        context.exit(1)


@click.command("port")
@click.argument("scripts", nargs=-1, required=True, type=click.Path(path_type=pathlib.Path))
@click.option("--diff", is_flag=True, help="Print the changes that --write makes, as a diff.")
@click.option("--write", is_flag=True, help="Print that diff, and write the files.")
@click.pass_context
def port_command(
    context: click.Context, scripts: tuple[pathlib.Path, ...], diff: bool, write: bool
) -> None:
    """List the parts of IPU programs that will not run, and rewrite what is mechanical.

    Each line says what to write instead. The programs are read, not run, with the modules beside
    them that they import. The exit status is 0 if nothing stands in the way, 1 if something does,
    and 2 if a file cannot be read. Lines that end in parentheses do not stand in the way: such code
    `runs as it is`, under `millrace run`, or is not reached.

    With --write, imports, names and arguments change where this needs no judgement, and the program
    then runs with `python`. Nothing else in the files changes. What is left to do is listed.
    """
    show = importlib.import_module("millrace_ipu.porting.findings.show")
    if diff or write:
        context.exit(show.show_rewritten(scripts, writes=write))
    context.exit(show.show_findings(scripts))


def _of_script(trace: TracebackType | None, script: str) -> TracebackType | None:
    """Returns a traceback from the script's first frame on; all of it if there is none."""
    here = trace
    while here is not None and not _is_file(here.tb_frame.f_code.co_filename, script):
        here = here.tb_next
    return here or trace


def _is_file(name: str, script: str) -> bool:
    return os.path.abspath(name) == os.path.abspath(script)


COMMANDS = (port_command, run_command)
