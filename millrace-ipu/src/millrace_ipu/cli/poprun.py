"""The command `millrace poprun`: an IPU program on several processes, by its original command.

    poprun --num-replicas 4 --num-instances 2 python train.py
    millrace poprun --num-replicas 4 --num-instances 2 python train.py

It is `millrace launch` of `millrace run`: 2 processes of 2 devices each.
"""

import pathlib
from collections.abc import Callable
from typing import Any

import click

from millrace.extend import LaunchOptions, launch, launch_options
from millrace_ipu.cli.scripts import check_script

_RUN = ("-m", "millrace", "run")
# Options of the original about hosts, MPI and partitions of devices.
_IGNORED = (
    "host", "host-subnet", "mpi-global-args", "mpi-local-args", "num-ilds", "numa-aware",
    "num-ipus-per-ild", "only-output-from-instance", "only-stdout-from-instance",
    "process-placement", "print-topology", "remove-partition", "reset-partition", "tag-output",
    "update-partition", "vipu-allocation", "vipu-cluster", "vipu-partition",
    "vipu-server-host", "vipu-server-port", "vipu-server-timeout",
)  # fmt: skip


def _ignored(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options that are taken without effect."""
    for name in _IGNORED:
        command = click.option(f"--{name}", hidden=True, expose_value=True)(command)
    return command


@click.command("poprun", context_settings={"allow_interspersed_args": False})
@click.option(
    "--num-replicas", type=click.IntRange(1), help="Replicas of all processes. [default: 1 each]"
)
@click.option(
    "--num-instances",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Number of processes.",
)
@click.option(
    "--ipus-per-replica",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Virtual CPU devices of a replica: the stages of a pipeline.",
)
@launch_options
@click.option("-v", "--verbose", count=True, hidden=True)
@_ignored
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_context
def poprun_command(
    context: click.Context,
    num_replicas: int | None,
    num_instances: int,
    ipus_per_replica: int,
    timeout: float,
    restarts: int,
    no_pin: bool,
    command: tuple[str, ...],
    **ignored: Any,
) -> None:
    """Run an unchanged IPU program as several processes on this machine.

    COMMAND is what stands behind `poprun` on the command line of an IPU: python, a script and its
    arguments. Each process is one instance of PopDist, and has its part of the replicas. Options
    of the original about hosts and partitions have no effect.
    """
    replicas = num_replicas or num_instances
    if replicas % num_instances:
        raise click.UsageError(
            f"--num-replicas {replicas} is not a multiple of --num-instances {num_instances}. Set "
            f"--num-replicas {-(-replicas // num_instances) * num_instances}."
        )
    script, *arguments = _script(command)
    del ignored["verbose"]
    named = [f"--{name.replace('_', '-')}" for name, value in ignored.items() if value]
    if named:
        click.echo(f"millrace poprun: without effect here: {', '.join(named)}", err=True)
    options = LaunchOptions(
        (*_RUN, script, *arguments),
        num_instances,
        replicas // num_instances * ipus_per_replica,
        timeout,
        not no_pin,
        (
            ("POPDIST_NUM_TOTAL_REPLICAS", str(replicas)),
            ("POPDIST_IPUS_PER_REPLICA", str(ipus_per_replica)),
        ),
        restarts,
    )
    context.exit(launch(options, lambda line: click.echo(line, err=True)))


def _script(command: tuple[str, ...]) -> tuple[str, ...]:
    """Returns a script and its arguments, without the interpreter in front of it."""
    name = pathlib.PurePath(command[0]).name
    script = command[1:] if name.startswith("python") and not name.endswith(".py") else command
    if not script or script[0].startswith("-") or not pathlib.Path(script[0]).is_file():
        raise click.UsageError(
            f"COMMAND must be a Python script and its arguments. Received: {' '.join(command)!r}."
        )
    check_script(script[0])
    return script
