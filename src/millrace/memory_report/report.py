"""The memory report of a model, before anything runs."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace

import keras
from rich.console import Console

from millrace._compat.keras_build import build_for
from millrace.errors import NotCompiledError, OptionError
from millrace.feeds.block import batch_spec as spec_of
from millrace.fit.controller import Controller
from millrace.fit.functions import LoopFunction
from millrace.fit.loop_arguments import check_targets
from millrace.memory_report.changes import cheapest_changes
from millrace.memory_report.needs import Needs, measure, with_limits
from millrace.options import bytes_or_share, whole_number
from millrace.plan import Mode
from millrace.precompile.batch_of_zeros import BatchDescription, batch_of_zeros
from millrace.precompile.dry_runs import Batches
from millrace.records.memory_report import MemoryReport


def memory_report(
    controller: Controller,
    batch_spec: BatchDescription,
    budget: int | str | None,
    steps_per_epoch: int | None,
) -> MemoryReport:
    """Returns the needs of training, and changes that fit; see `Strategy.memory_report`."""
    model, limit = controller.model, None if budget is None else _limit(budget)
    if not model.compiled:
        raise NotCompiledError(
            f"{model.name!r} is not compiled, and the memory of its training depends on its "
            "optimizer and its loss. Call model.compile(optimizer, loss) before memory_report()."
        )
    batch = batch_of_zeros(batch_spec)
    if steps_per_epoch is not None:
        steps_per_epoch = whole_number("steps_per_epoch", steps_per_epoch, 1)
    controller.setup.check(Mode.TRAIN)
    if keras.utils.unpack_x_y_sample_weight(batch)[1] is None:
        several = "A list is x alone, of several inputs. " if isinstance(batch_spec, list) else ""
        check_targets(model, "memory_report()", f"{several}Set batch_spec to (x[:32], y[:32])")
    controller.feeds.is_built_ahead |= build_for(model, batch)
    model.make_train_function()
    batches = Batches(spec_of(batch), model.steps_per_execution, steps_per_epoch)
    before = measure(controller, controller.functions.compiled[Mode.TRAIN].runner(), batches)
    devices = with_limits(before.devices, controller.setup, limit)
    report = MemoryReport(model.name, str(batches.spec), devices)
    if report.fits is not False:
        return report
    with _progress() as tick:
        changes = cheapest_changes(controller, batches, report, before, limit, _needs, tick)
    return replace(report, changes=changes)


def _needs(controller: Controller, batches: Batches) -> Needs:
    return measure(controller, LoopFunction(controller, Mode.TRAIN).runner(), batches)


def _limit(budget: int | str) -> int:
    nbytes = bytes_or_share(budget)
    if isinstance(nbytes, float):
        raise OptionError(
            f"budget is the bytes of one device. Received: {budget!r}. Set it to a whole number "
            "of bytes, or text such as '1.5GB'."
        )
    return nbytes


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[str], object]]:
    """Yields a function that shows, on a terminal, the change that is being compiled."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda code: None
        return
    with console.status("looking for what would make it fit ...") as status:
        yield lambda code: status.update(f"compiling with {code} ...".replace("[", r"\["))
