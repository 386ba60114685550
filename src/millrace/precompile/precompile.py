"""Compiling everything that a model will run, before there is data."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import keras
from rich.console import Console

from millrace._compat.keras_build import build_for
from millrace.arguments import refuse_unknown
from millrace.errors import NotCompiledError
from millrace.feeds.block import batch_spec as spec_of
from millrace.fit.controller import Controller
from millrace.options import whole_number
from millrace.plan import Mode
from millrace.precompile.batch_of_zeros import batch_of_zeros
from millrace.precompile.rehearse import Batches, rehearse, steps_of_execution

_KNOWN = ("steps_per_epoch",)
_REASONS = {"batch_size": "it follows from the shapes of batch_spec."}


def precompile(
    controller: Controller, batch_spec: Any, *, steps_per_epoch: int | None = None, **unknown: Any
) -> None:
    """Compiles what fit, evaluate and predict will run on such batches, and runs nothing.

    All programs are compiled at the same time, those of all stages included, and kept in the cache
    on disk if there is one. The model gets the variables that `fit` would give it: of its metrics
    and its optimizer.

    Args:
        controller: of the model whose method this becomes.
        batch_spec: one micro-batch as `fit` sees it, `(x, y)` or `(x, y, sample_weight)`, of
            arrays, `jax.ShapeDtypeStruct`s or pairs of shape and dtype. Numbers do not matter.
            With x alone only what predict runs is compiled.
        steps_per_epoch: batches in an epoch. Arrays that stay on the device are cut into blocks of
            up to so many; None cuts them into blocks of one execution.
        **unknown: refused, with the nearest name.

    Raises:
        OptionError: for a batch that is none of these, or an unknown option.
        NotCompiledError: if the model is not compiled, and would be trained.
        PlanError: if options and stages do not fit together, as `fit` would say.
    """
    refuse_unknown("precompile", unknown, _KNOWN, _REASONS)
    if steps_per_epoch is not None:
        whole_number("steps_per_epoch", steps_per_epoch, 1)
    given = batch_of_zeros(batch_spec)
    batches = {}
    for mode in _modes(controller, given):
        controller.setup.check(mode)
        is_whole = mode is not Mode.PREDICT or not _has_targets(given)
        batch = given if is_whole else batch_of_zeros((batch_spec[0],))
        batches[mode] = Batches(spec_of(batch), _steps(controller), steps_per_epoch)
        steps_of_execution(controller.setup, mode, batches[mode])  # refuses what no loop could run
    _build(controller, given)
    for mode in batches:
        getattr(controller.model, f"make_{mode.value}_function")()

    def job(mode: Mode) -> Callable[[], None]:
        runner = controller.functions.compiled[mode].runner()
        return lambda: rehearse(controller, runner, mode, batches[mode])

    at_once(controller, [job(mode) for mode in batches])
    for mode in batches:
        controller.feeds.fix_capacity(mode, batches[mode].spec)


def at_once(controller: Controller, jobs: Sequence[Callable[[], None]]) -> None:
    """Does jobs that compile programs of a model, each in a thread, and waits for all."""
    # As in the thread that will run what is compiled, and not as in a new one.
    device = jax.config.jax_default_device  # type: ignore[attr-defined]

    def do(job: Callable[[], None]) -> None:
        with jax.default_device(device):
            job()

    with _status(controller), ThreadPoolExecutor(len(jobs), "millrace-precompile") as pool:
        for each in [pool.submit(do, job) for job in jobs]:
            each.result()


def _modes(controller: Controller, given: Any) -> list[Mode]:
    if not _has_targets(given):
        return [Mode.PREDICT]
    if not controller.model.compiled:
        raise NotCompiledError(
            f"What {controller.model.name!r} trains depends on its optimizer and its loss, and it "
            "is not compiled. Call model.compile(optimizer, loss) before precompile(), or give it "
            "x alone for what predict runs."
        )
    return list(Mode)


def _has_targets(batch: Any) -> bool:
    return keras.utils.unpack_x_y_sample_weight(batch)[1] is not None


def _steps(controller: Controller) -> int:
    return controller.model.steps_per_execution if controller.model.compiled else 1


def _build(controller: Controller, batch: Any) -> None:
    model = controller.model
    if model.compiled:
        controller.feeds.is_built_ahead |= build_for(model, batch)
    elif not model.built:
        x, _, _ = keras.utils.unpack_x_y_sample_weight(batch)
        model.build(jax.tree.map(lambda leaf: leaf.shape, x))


def _status(controller: Controller) -> Any:
    console = Console(stderr=True)
    name = controller.model.name
    return console.status(f"compiling {name} ...") if console.is_terminal else console
