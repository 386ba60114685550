"""The records about every executable of a run, written when it is made.

CompileLog.observers -> ProgramRecorder -> its program, read once
-> what it needs    program_memory.py
-> what it does     counted_operations
"""

import logging
import threading
from collections.abc import Callable
from typing import TypeVar

from millrace.base.records.operations import ProgramOperations
from millrace.base.records.sinks import RecordSinks
from millrace.base.threads.scoped_value import Notes
from millrace.compilation.executables.trials import NewExecutable
from millrace.programs.plan import Mode
from millrace.run.memory.hlo_proto import Module
from millrace.tools.operations.groups import ProgramCount, count_operations, program_of
from millrace.tools.recording.program_memory import program_memory, stage_of

T = TypeVar("T")

logger = logging.getLogger("millrace")


class ProgramRecorder:
    """An observer of a compile log, which writes the memory and the operations of executables."""

    def __init__(self, sinks: RecordSinks):
        """Begins with no executable.

        Args:
            sinks: take the records; without any, nothing is analyzed.
        """
        self._sinks = sinks
        self._lock = threading.Lock()
        self._notes = Notes()  # what has failed
        # By the name of XLA's module: several programs may have the same.
        self.counts: dict[str, list[tuple[ProgramOperations, ProgramCount]]] = {}

    def __call__(self, new: NewExecutable) -> None:
        """Writes the records of an executable; an error is logged once, and training continues."""
        if not self._sinks:
            return
        module = self._tried("program", new, lambda: program_of(new.executable))
        if module is None:
            return
        self._tried("memory", new, lambda: self._sinks.add(program_memory(new, module)))
        if not new.is_trial:
            self._tried("operations", new, lambda: self._add_operations(new, module))

    def _add_operations(self, new: NewExecutable, module: Module) -> None:
        record, count = counted_operations(new, module)
        with self._lock:
            self.counts.setdefault(count.name, []).append((record, count))
        self._sinks.add(record)

    def _tried(self, what: str, new: NewExecutable, function: Callable[[], T]) -> T | None:
        """Calls a function; None if it fails: training is worth more than its records."""
        try:
            return function()
        except Exception as error:
            if self._notes.is_new(what):
                logger.warning(
                    "The %s of %s of %r cannot be recorded, nor that of later programs if they "
                    "fail alike: %s: %s. The run continues.",
                    what, new.record.program, new.record.model, type(error).__name__, error,
                    exc_info=error,
                )  # fmt: skip
            return None


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
    is_backward = "_backward" in record.program
    count = count_operations(module, new.executable, new.model, is_backward)
    operations = ProgramOperations(
        model=record.model,
        program=record.program,
        key=record.key,
        stage=stage_of(record.program),
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
