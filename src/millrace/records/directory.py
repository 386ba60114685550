"""The directory of a run, and the records that are written into it.

    processes.jsonl      who took part
    loops.jsonl          calls of fit, evaluate and predict
    compile_log.jsonl    what was compiled, and why
    ...                  one file for each kind of record: `KINDS`
    loops.1.jsonl        those of process 1

The first line of a file names the format, its version and the kind. Every other line is one record.
Lines are complete or missing, also after a run was killed.
"""

import json
import logging
import os
import pathlib
import threading
from typing import IO

from millrace.errors import OptionError
from millrace.records.codec import encode
from millrace.records.compilation import CompileRecord
from millrace.records.feed_benchmark import FeedVerdict
from millrace.records.flight import FlightNote
from millrace.records.loops import (
    EpochRecord,
    ExecutionSample,
    FeedSample,
    LoopRecord,
    ProcessRecord,
)
from millrace.records.memory_report import BudgetChoice, MemoryReport
from millrace.records.operations import ProgramOperations
from millrace.records.program_memory import ProgramMemory
from millrace.records.tensors import TensorSeries
from millrace.records.trace import ExecutionTrace

FORMAT, VERSION = "millrace records", 1
COMPILE_LOG = "compile_log"
KINDS: dict[str, type] = {
    "processes": ProcessRecord,
    "loops": LoopRecord,
    "epochs": EpochRecord,
    "executions": ExecutionSample,
    "feeds": FeedSample,
    COMPILE_LOG: CompileRecord,
    "memory": ProgramMemory,
    "operations": ProgramOperations,
    "traces": ExecutionTrace,
    "tensors": TensorSeries,
    "budgets": BudgetChoice,
    "memory_reports": MemoryReport,
    "feed_verdicts": FeedVerdict,
    "flights": FlightNote,
}
_KIND_OF = {kind: name for name, kind in KINDS.items()}

logger = logging.getLogger("millrace")


def header(kind: str) -> dict[str, object]:
    """Returns the first line of a file of records."""
    return {"format": FORMAT, "version": VERSION, "kind": kind}


class RunDirectory:
    """Writes records into a directory, at the end of existing files."""

    def __init__(self, directory: str | pathlib.Path, process: int = 0):
        """Makes the directory.

        Args:
            directory: of the run.
            process: number of this process in the run; each writes its own files.

        Raises:
            OptionError: if it cannot be made.
        """
        self.path = pathlib.Path(directory)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OptionError(
                f"report_dir={str(directory)!r} cannot be made: {error}. Set it to a directory "
                "that can be written to, or leave it out."
            ) from error
        self.process = process
        self._lock = threading.Lock()
        self._has_failed = False
        self._begun: set[str] = set()  # kinds whose files were whole when this process came to them

    def add(self, record: object) -> None:
        """Writes a record of one of `KINDS` at the end of its file.

        A directory that can no longer be written to, such as one on a full disk, is reported once
        to the log, and does not end the training.
        """
        kind = _KIND_OF[type(record)]
        suffix = f".{self.process}" if self.process else ""
        path = self.path / f"{kind}{suffix}.jsonl"
        line = json.dumps(encode(record), allow_nan=False)
        with self._lock:
            if self._has_failed:
                return
            try:
                with path.open("a+b") as file:
                    file.write(f"{self._before(file, kind)}{line}\n".encode())
            except OSError as error:
                self._has_failed = True
                logger.warning(
                    "Records are no longer written to %s: %s. The run goes on.", self.path, error
                )

    def _before(self, file: IO[bytes], kind: str) -> str:
        """Returns what must come before a record: the header, or the end of a broken line."""
        if not file.tell():
            return f"{json.dumps(header(kind))}\n"
        if kind in self._begun:
            return ""
        self._begun.add(kind)
        file.seek(-1, os.SEEK_END)
        return "" if file.read() == b"\n" else "\n"
