"""The commands `millrace plan` and `millrace memory`: a script's training on devices of a target.

    millrace plan train.py --target h100:8       runs train.py up to its first fit
        Strategy(...) in it                      has the target in place of its devices
        no strategy in it                        its models are built in the scope of one
        fit(x, y, batch_size=64)                 refuses, and the command has model and data

Nothing is trained. The script's own work before fit, such as reading its data, is done.
"""

import contextlib
import pathlib
import runpy
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import click
import jax
import keras

from millrace._compat.keras_data import get_data_adapter
from millrace.api.strategy.strategy import ForcedTarget, Strategy, forced_target
from millrace.base.pytrees import ArrayTree
from millrace.errors import DataError
from millrace.programs.plan import Mode
from millrace.run.fit.described import NotPresentError
from millrace.run.fit.on_batch import NAMES
from millrace.tools.cli.types import table_console, with_options
from millrace.tools.planning.batch_of_data import batch_of_data, with_rows

_TRAINS = ("fit", NAMES[Mode.TRAIN])
_ARGUMENTS = ("x", "y", "sample_weight", "batch_size", "class_weight", "shuffle", "steps_per_epoch")


@dataclass(frozen=True, slots=True)
class ReachedFit:
    """What a script has built when it calls fit."""

    strategy: Strategy  # that has the model
    model: keras.Model
    batch: tuple[Any, ...]  # specs of x, y and sample weights


def run_to_fit(
    target: str, script: str, arguments: tuple[str, ...], rows: int | None
) -> ReachedFit:
    """Runs a script up to its first training, for devices of a target.

    Args:
        target: as of `Strategy`.
        script: path of the script.
        arguments: of the script.
        rows: of a batch; None for those that the script gives to fit.

    Raises:
        DataError: if the script ends before, or runs a model before it trains one.
        MillraceError: of the target, or of the script.
    """
    if not jax.config.jax_platforms:  # type: ignore[attr-defined]  # nothing runs on any of them
        jax.config.update("jax_platforms", "cpu")
    forced = ForcedTarget(target)
    try:
        with (
            forced_target.bound_to(forced),
            Strategy().scope(),
            _as_main(script, arguments),
            contextlib.suppress(SystemExit),
        ):
            runpy.run_path(script, run_name="__main__")
    except NotPresentError as call:
        if call.name not in _TRAINS:
            raise DataError(
                f"{script} calls {call.name}() of {call.model.name!r} before it trains a model, "
                "and the devices of a target cannot run it. Have the script leave that out."
            ) from None
        batch = with_rows(_batch(call.arguments), rows)
        return ReachedFit(forced.owner(call.model), call.model, batch)
    raise DataError(
        f"{script} has ended without a call of fit() or train_on_batch(), and only these tell the "
        "batches of its training. In the script itself call strategy.plan(model, batch) or "
        "strategy.memory_report(model, batch), with Strategy(target=...)."
    )


@contextlib.contextmanager
def _as_main(script: str, arguments: tuple[str, ...]) -> Iterator[None]:
    """Has the arguments and the path of modules as `python script` would have them."""
    before = sys.argv, sys.path[0]
    sys.argv = [script, *arguments]
    sys.path[0] = str(pathlib.Path(script).resolve().parent)
    try:
        yield
    finally:
        sys.argv, sys.path[0] = before


def _batch(arguments: Mapping[str, Any]) -> ArrayTree:
    """Returns a batch of the data that fit was given, which it may draw: nobody else will."""
    found = batch_of_data(arguments)
    if found is not None:
        return found[0]
    given = {name: arguments.get(name) for name in _ARGUMENTS if arguments.get(name) is not None}
    adapter = get_data_adapter(**{"class_weight": None, **given})
    return next(iter(adapter.get_jax_iterator()))


_options = with_options(
    click.option(
        "--target", required=True, help="The devices: h100:8, a100-80gb, v5e:2x4 or another."
    ),
    click.option("--rows", type=click.IntRange(1), help="Rows of a batch, in place of fit's."),
)
_script = with_options(
    click.argument("script", type=click.Path(exists=True, dir_okay=False)),
    click.argument("arguments", nargs=-1, type=click.UNPROCESSED),
)
_SETTINGS = {"allow_interspersed_args": False}  # what follows the script is the script's


@click.command("plan", context_settings=_SETTINGS)
@_options
@click.option("--memory", help="Bytes of one device, such as 40GB; what it has is a limit, too.")
@click.option("--save", type=click.Path(dir_okay=False), help="Write the plan to this file.")
@_script
def plan_command(
    target: str,
    rows: int | None,
    memory: str | None,
    save: str | None,
    script: str,
    arguments: tuple[str, ...],
) -> None:
    """Plan the training of a script for devices that are not here.

    Runs the script up to its first fit, and searches the fastest training that the devices hold:
    micro-batches, recomputation, offloading, sharding, replicas, stages and schedules. The rows of
    fit's batch are those of one update. The target's own compiler compiles; nothing is trained.
    """
    reached = run_to_fit(target, script, arguments, rows)
    plan = reached.strategy.plan(reached.model, reached.batch, memory)
    plan.show(table_console())
    if save:
        plan.save(save)
        click.echo(f"To use it: millrace.TrainingPlan.load({save!r}).apply(model=model)")


@click.command("memory", context_settings=_SETTINGS)
@_options
@click.option("--budget", help="Bytes of one device, such as 40GB; what it has is a limit, too.")
@_script
def memory_command(
    target: str, rows: int | None, budget: str | None, script: str, arguments: tuple[str, ...]
) -> None:
    """Show the memory that a script's training takes on devices that are not here.

    Runs the script up to its first fit, compiles its training with the target's own compiler, and
    prints what each device holds; if that is too much, changes that would make it fit.
    """
    reached = run_to_fit(target, script, arguments, rows)
    report = reached.strategy.memory_report(reached.model, reached.batch, budget)
    report.show(table_console())
