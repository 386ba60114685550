"""The error of a device without memory: how it was used, and how to find options that fit."""

from collections.abc import Iterator
from contextlib import contextmanager

from millrace.errors import OutOfMemoryError
from millrace.fit.controller import Controller
from millrace.fit.loop_functions import KeptFunction
from millrace.memory_report.needs import measure, with_limits
from millrace.plan import Mode
from millrace.precompile.dry_runs import Batches
from millrace.records.memory_report import MemoryReport


@contextmanager
def explained(controller: Controller) -> Iterator[None]:
    """Surrounds Keras's loops, and explains the error of a device without memory.

    Raises:
        OutOfMemoryError: with a table of the uses of memory, if it can be made.
    """
    try:
        yield
    except OutOfMemoryError:  # of the validation within fit, already explained
        raise
    except BaseException as error:
        function = controller.functions.running
        if function is None or function.last.out_of_memory is None:
            raise
        first = str(function.last.out_of_memory).strip().splitlines()[0]
        name, steps = controller.model.name, function.last.number
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
        needs = measure(controller, function.runner(), Batches(spec, model.steps_per_execution))
        devices = with_limits(needs.devices, controller.setup, None)
    except Exception:  # the compilation itself may have had no memory
        return ""
    return f"\n{MemoryReport(model.name, str(spec), devices)}"
