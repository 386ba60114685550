"""The records about every executable of a run, written when it is made.

CompileLog.observers -> ProgramRecorder -> its program, read once
-> what it needs    program_memory.py
-> what it does     operations.py
"""

import logging
import threading

from millrace.base.records.operations import ProgramOperations
from millrace.base.records.sinks import RecordSinks
from millrace.compilation.executables.log import NewExecutable
from millrace.run.memory.hlo_proto import Module
from millrace.tools.operations.groups import ProgramCount, program_of
from millrace.tools.recording.operations import counted_operations
from millrace.tools.recording.program_memory import program_memory

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
        self._has_failed: set[str] = set()
        # By the name of XLA's module: several programs may have the same.
        self.counts: dict[str, list[tuple[ProgramOperations, ProgramCount]]] = {}

    def __call__(self, new: NewExecutable) -> None:
        """Writes the records of an executable; an error is logged once, and training goes on."""
        if not self._sinks:
            return
        try:
            module = program_of(new.executable)
        except Exception as error:  # of any kind: training is worth more than its records
            self._log("program", new, error)
            return
        if module is None:
            return
        try:
            self._sinks.add(program_memory(new, module))
        except Exception as error:  # as above
            self._log("memory", new, error)
        if new.is_trial:
            return
        try:
            self._add_operations(new, module)
        except Exception as error:  # as above
            self._log("operations", new, error)

    def _add_operations(self, new: NewExecutable, module: Module) -> None:
        record, count = counted_operations(new, module)
        with self._lock:
            self.counts.setdefault(count.name, []).append((record, count))
        self._sinks.add(record)

    def _log(self, what: str, new: NewExecutable, error: Exception) -> None:
        with self._lock:
            is_first = what not in self._has_failed
            self._has_failed.add(what)
        if is_first:
            logger.warning(
                "The %s of %s of %r cannot be recorded, nor that of later programs if they fail "
                "alike: %s: %s. The run goes on.",
                what, new.record.program, new.record.model, type(error).__name__, error,
                exc_info=error,
            )  # fmt: skip
