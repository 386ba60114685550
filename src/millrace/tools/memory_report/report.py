"""The memory report of a model, and the text of out-of-memory errors."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import keras

from millrace._compat.keras_build import build_for
from millrace.base.options import bytes_or_share, whole_number
from millrace.base.records.memory_report import MemoryReport
from millrace.errors import DataError, NotCompiledError, OptionError, OutOfMemoryError
from millrace.programs.feeds.block import batch_spec as spec_of
from millrace.programs.plan import BatchSpec, Mode
from millrace.run.compiled_loop.budget import OverBudgetError
from millrace.run.fit.controller import Controller
from millrace.run.fit.functions import LoopFunction
from millrace.run.fit.model_functions import KeptFunction
from millrace.run.precompile.described_batch import BatchDescription, batch_of_zeros
from millrace.run.precompile.precompile import Batches, batches_of_steps
from millrace.tools.memory_report.changes import cheapest_changes
from millrace.tools.memory_report.needs import measure, with_limits
from millrace.tools.memory_report.refusals import explained_refusal


@contextmanager
def explained(controller: Controller) -> Iterator[None]:
    """Surrounds Keras's loops, and explains the error of a device without memory.

    Raises:
        OutOfMemoryError: with a table of the uses of memory, if it can be made.
        OverBudgetError: with the tensors at the peak, and the changes that fit.
    """
    try:
        yield
    except OutOfMemoryError:  # of the validation within fit, already explained
        raise
    except OverBudgetError as error:
        function = controller.functions.running
        if function is None or function.last.batch is None:
            raise
        batches = Batches(function.last.batch, controller.setup.steps_per_execution(Mode.TRAIN))
        raise explained_refusal(error, controller, batches) from None
    except BaseException as error:
        function = controller.functions.running
        if function is None or function.last.out_of_memory is None:
            raise
        first = str(function.last.out_of_memory).strip().splitlines()[0]
        name, steps = controller.model.name, function.last.steps
        raise OutOfMemoryError(
            f"A device ran out of memory in '{function.mode.value}' of {name!r}, in an "
            f"execution of {steps} steps: {first} "
            "Call strategy.memory_report(model, batch) to learn which changes would make it fit, "
            f"or give fit a smaller batch_size.{_table(controller, function)}"
        ) from error


def _table(controller: Controller, function: KeptFunction) -> str:
    """Returns a table of the uses of memory, from existing executables; "" if they have none."""
    model, spec = controller.model, function.last.batch
    if spec is None or function.mode is not Mode.TRAIN:
        return ""
    try:
        needs = measure(
            controller,
            function.runner(),
            Batches(spec, controller.setup.steps_per_execution(Mode.TRAIN)),
        )
        devices = with_limits(needs.devices, controller.setup, None)
    except Exception:  # the compilation itself may have had no memory
        return ""
    return f"\n{MemoryReport(model.name, str(spec), devices)}"


def memory_report(
    controller: Controller,
    batch_spec: BatchDescription,
    budget: int | str | None,
    steps_per_epoch: int | None,
) -> MemoryReport:
    """Returns the needs of training, and changes that fit; see `Strategy.memory_report`."""
    model = controller.model
    limit = controller.totals.memory if budget is None else _limit(budget)
    spec = training_batch(controller, batch_spec, "memory_report()", steps_per_epoch)
    model.make_train_function()
    batches = batches_of_steps(controller.setup, Mode.TRAIN, spec, steps_per_epoch)
    function = controller.functions.compiled[Mode.TRAIN]
    if controller.setup.stages.is_open:  # which the report does not decide
        function = LoopFunction(controller, Mode.TRAIN)
    try:
        before = measure(controller, function.runner(), batches)
    except OverBudgetError as error:
        raise explained_refusal(error, controller, batches) from None
    devices = with_limits(before.devices, controller.setup, limit)
    report = MemoryReport(model.name, str(batches.spec), devices)
    if report.fits is not False:
        return report
    return replace(report, changes=cheapest_changes(controller, batches, report, before, limit))


def training_batch(
    controller: Controller,
    batch_spec: BatchDescription,
    caller: str,
    steps_per_epoch: int | None = None,
    any_options: bool = False,
) -> BatchSpec:
    """Returns the spec of a batch for training, and builds the model for it.

    Args:
        controller: of the model.
        batch_spec: as of `Strategy.memory_report`.
        caller: in errors.
        steps_per_epoch: checked only.
        any_options: whether the options of the model need not fit together.

    Raises:
        NotCompiledError: if the model is not compiled.
        DataError: for a batch without targets, if the loss of the model needs them.
        OptionError: for an invalid batch or `steps_per_epoch`.
        PlanError: if options and stages do not fit together, as in `fit`.
    """
    model = controller.model
    if not model.compiled:
        raise NotCompiledError(
            f"{model.name!r} is not compiled, and the memory of its training depends on its "
            f"optimizer and its loss. Call model.compile(optimizer, loss) before {caller}."
        )
    batch = batch_of_zeros(batch_spec)
    if steps_per_epoch is not None:
        whole_number("steps_per_epoch", steps_per_epoch, 1)
    if not any_options:
        controller.setup.check(Mode.TRAIN)
    if keras.utils.unpack_x_y_sample_weight(batch)[1] is None:
        several = "A list is x alone, of several inputs. " if isinstance(batch_spec, list) else ""
        _refuse_no_targets(model, caller, f"{several}Set batch_spec to (x[:32], y[:32])")
    controller.feeds.is_built_ahead |= build_for(model, batch)
    return spec_of(batch)


def _refuse_no_targets(model: keras.Model, caller: str, advice: str) -> None:
    needs = model.loss is not None and not isinstance(model.loss, dict | list | tuple)
    stock = all(
        getattr(type(model), name) is getattr(keras.Model, name)
        for name in ("compute_loss", "train_step")
    )
    if needs and stock:
        raise DataError(
            f"{caller} was given no targets, and the loss of {model.name!r} needs them. {advice}, "
            "or compile without a loss if layers add all losses themselves."
        )


def _limit(budget: int | str) -> int:
    nbytes = bytes_or_share(budget)
    if isinstance(nbytes, float):
        raise OptionError(
            f"budget is the bytes of one device. Received: {budget!r}. Set it to a whole number "
            "of bytes, or text such as '1.5GB'."
        )
    return nbytes
