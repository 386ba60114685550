"""The operations of an executable, as a record."""

import re

from millrace.base.records.operations import ProgramOperations
from millrace.compilation.executables.log import NewExecutable
from millrace.programs.plan import Mode
from millrace.run.memory.hlo_proto import Module
from millrace.tools.operations.groups import ProgramCount, count_operations

_STAGE = re.compile(r" of stage (\d+)$")


def counted_operations(
    new: NewExecutable, module: Module
) -> tuple[ProgramOperations, ProgramCount]:
    """Returns the record of an executable's operations, and the owners of each.

    FLOPs and bytes are those of one iteration of the loop over updates, whose number of iterations
    is an argument, or of all of them where the loop is unrolled: `steps` says of how many steps.

    Args:
        new: the executable.
        module: its program.
    """
    record = new.record
    stage = _STAGE.search(record.program)
    is_backward = "_backward" in record.program
    count = count_operations(module, new.executable, new.model, is_backward)
    operations = ProgramOperations(
        model=record.model,
        program=record.program,
        key=record.key,
        stage=int(stage[1]) if stage else 0,
        steps=_steps(new),
        groups=count.groups,
        unknown_loops=count.unknown_loops,
    )
    return operations, count


def _steps(new: NewExecutable) -> int:
    """Returns the steps of one iteration of a program's loop, or of its unrolled code."""
    plan = new.plan
    if plan is None:
        return 1
    program = new.record.program.partition("_")[2]
    iterations = new.record.unrolled or 1
    if program == "run":
        return iterations * plan.update_steps
    if program in ("apply", "zeros") or program.startswith("final"):
        return plan.update_steps
    if program == "accumulate":
        return iterations * plan.replicas
    return plan.replicas if plan.mode is not Mode.TRAIN else 1
