"""What is said when a device has no memory left: where it goes, and how to learn what would fit."""

from collections.abc import Callable

from millrace._compat.jax_memory import is_out_of_memory
from millrace.errors import OutOfMemoryError
from millrace.fit.controller import Controller
from millrace.memory_report.needs import Needs, with_limits
from millrace.plan import Mode
from millrace.precompile.rehearse import Batches
from millrace.records.memory_report import MemoryReport


def out_of_memory(error: BaseException) -> BaseException | None:
    """Returns what JAX raised, if `error` is or follows from a lack of memory."""
    found: BaseException | None = error
    while found is not None and not is_out_of_memory(found):
        found = found.__cause__
    return found


def out_of_memory_error(
    error: BaseException,
    controller: Controller,
    mode: Mode,
    steps: int,
    needs: Callable[[Batches], Needs],
    batches: Batches | None,
) -> OutOfMemoryError:
    """Returns the error for the user.

    Args:
        error: of JAX.
        controller: of the model.
        mode: of the loop.
        steps: of the execution that failed.
        needs: what tells how memory is used, from executables that are there.
        batches: of the loop; None if none was taken yet, or nothing is known of the mode's memory.
    """
    first = str(error).strip().splitlines()[0]
    table = "" if batches is None else _table(controller, needs, batches)
    return OutOfMemoryError(
        f"A device ran out of memory in '{mode.value}' of {controller.model.name!r}, in an "
        f"execution of {steps} steps: {first} "
        "Call strategy.memory_report(model, batch) to learn which changes would make it fit, or "
        f"give fit a smaller batch_size.{table}"
    )


def _table(controller: Controller, needs: Callable[[Batches], Needs], batches: Batches) -> str:
    try:
        devices = with_limits(needs(batches).devices, controller, None)
    except Exception:  # the compilation itself may be what had no memory
        return ""
    return f"\n{MemoryReport(controller.model.name, str(batches.spec), devices)}"
