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

from millrace.base.records.codec import encode
from millrace.base.records.compilation import CompileRecord
from millrace.base.records.flight import FlightNote
from millrace.base.records.loops import (
    EpochRecord,
    ExecutionSample,
    FeedSample,
    LoopRecord,
    ProcessRecord,
)
from millrace.base.records.memory_report import BudgetChoice, MemoryReport
from millrace.base.records.operations import ProgramOperations
from millrace.base.records.program_memory import ProgramMemory
from millrace.base.records.tensors import TensorSeries
from millrace.base.records.trace import ExecutionTrace
from millrace.errors import OptionError

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
    "flights": FlightNote,
}
_KIND_OF = {kind: name for name, kind in KINDS.items()}

logger = logging.getLogger("millrace")


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
        _make(self.path)
        self.process = process
        self.written = 0  # records, by this process
        self._lock = threading.Lock()
        self._has_failed = False  # said once, and nothing is written any more
        self._begun: set[str] = set()  # kinds whose files were whole when this process came to them

    def add(self, *records: object) -> None:
        """Writes records of one of `KINDS` at the end of their file.

        A directory that can no longer be written to, such as one on a full disk, is reported once
        to the log, and does not end the training.
        """
        if not records or self._has_failed:
            return
        try:
            kind = _KIND_OF[type(records[0])]
            suffix = f".{self.process}" if self.process else ""
            path = self.path / f"{kind}{suffix}.jsonl"
            lines = [f"{json.dumps(encode(each), allow_nan=False)}\n" for each in records]
            with self._lock, path.open("a+b") as file:
                file.write(f"{self._before(file, kind)}{''.join(lines)}".encode())
                self.written += len(lines)
        except Exception as error:  # of any kind: training is worth more than its records
            self._has_failed = True
            logger.warning(
                "Records are no longer written to %s: %s. The run continues.",
                self.path,
                error if isinstance(error, OSError) else repr(error),
            )

    def begin_again(self) -> None:
        """Writes records again, after a failure that may have been put right.

        Raises:
            OptionError: if the directory cannot be made.
        """
        _make(self.path)
        self._has_failed = False
        self._begun.clear()

    def _before(self, file: IO[bytes], kind: str) -> str:
        """Returns what must come before a record: the header, or the end of a broken line."""
        if not file.tell():
            return f"{json.dumps({'format': FORMAT, 'version': VERSION, 'kind': kind})}\n"
        if kind in self._begun:
            return ""
        self._begun.add(kind)
        file.seek(-1, os.SEEK_END)
        return "" if file.read() == b"\n" else "\n"


def _make(path: pathlib.Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OptionError(
            f"report_dir={str(path)!r} cannot be made: {error}. Set it to a directory "
            "that can be written to, or leave it out."
        ) from error
