"""Writes down the operations of each executable of a run.

CompileLog.observers -> OperationRecorder.observe -> count_operations -> ProgramOperations
"""

import logging
import re
import threading

from millrace.compiling.log import NewExecutable
from millrace.operations.groups import ProgramCount, count_operations
from millrace.plan import Mode
from millrace.records.operations import ProgramOperations
from millrace.records.sinks import RecordSinks

_STAGE = re.compile(r" of stage (\d+)$")

logger = logging.getLogger("millrace")


class OperationRecorder:
    """Counts the operations of executables as they are made, and writes records of them.

    Append `observe` to the `observers` of a compile log.
    """

    def __init__(self, sinks: RecordSinks):
        self._sinks = sinks
        self._lock = threading.Lock()
        self._has_failed = False
        # By the name of XLA's module: several programs may have the same.
        self.counts: dict[str, list[tuple[ProgramOperations, ProgramCount]]] = {}

    def observe(self, new: NewExecutable) -> None:
        """Writes the operations of an executable. An error is logged once, and the run goes on."""
        if not self._sinks:
            return
        try:
            counted = counted_operations(new)
        except Exception as error:
            with self._lock:
                first, self._has_failed = not self._has_failed, True
            if first:
                logger.warning(
                    "The operations of %s cannot be counted, and are missing in the records: "
                    "%s: %s. The run goes on.",
                    new.record.program,
                    type(error).__name__,
                    error,
                )
            return
        if counted is None:
            return
        with self._lock:
            self.counts.setdefault(counted[1].name, []).append(counted)
        self._sinks.add(counted[0])


def counted_operations(new: NewExecutable) -> tuple[ProgramOperations, ProgramCount] | None:
    """Returns the record of an executable's operations, and the owners of each.

    FLOPs and bytes are those of one iteration of the loop over updates, whose number of iterations
    is an argument, or of all of them where the loop is unrolled: `steps` says of how many steps.
    """
    record = new.record
    stage = _STAGE.search(record.program)
    is_backward = "_backward" in record.program
    count = count_operations(new.executable, new.model, is_backward)
    if count is None:
        return None
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
