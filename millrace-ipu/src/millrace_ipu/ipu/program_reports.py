"""A directory of records for each program that is compiled, as Poplar's auto-report makes them.

    reports/tf_report__2026-01-02__03-04-05.678__77/     train of "mlp"
        framework.json                                   versions, model, stages, schedule, ...
        compile_log.jsonl, memory.jsonl, traces.jsonl    records: `millrace report DIRECTORY`
        report.html
    reports/tf_report__2026-01-02__03-04-09.123__77/     evaluation of "mlp"

The executables of the stages of one pipeline are one program. Programs that are read from a cache
make no directory, and later loops of a program add to its own. One that is compiled again, for
batches of another shape, say, makes another directory.
"""

import atexit
import json
import logging
import os
import pathlib
import threading
import time
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import keras

import millrace
from millrace.errors import OptionError
from millrace.extend import (
    CompileRecord,
    ExecutionSample,
    ExecutionTrace,
    FeedSample,
    LoopRecord,
    MemoryReport,
    Origin,
    ProgramListener,
    ProgramMemory,
    ProgramOperations,
    RecordedRun,
    RecordSinks,
    process_index,
    register_listener,
)
from millrace_ipu.ipu.engine_options import VARIABLE, AutoReport, current_report

logger = logging.getLogger("millrace")

FRAMEWORK = "framework.json"
_OF_EXECUTABLES = ("program", "batch", "key", "cause", "seconds", "peak_bytes")
_GRAPH = (ProgramMemory, ProgramOperations, MemoryReport)
_SCHEDULE, _STEPS = "pipeline_schedule", "gradient_accumulation_steps_per_replica"
Owner = tuple[str, str]  # model and mode; no model, and the name, of a function


@dataclass(slots=True)
class ProgramReport:
    """The directory of one program."""

    options: AutoReport
    run: RecordedRun
    owner: Owner
    programs: list[str] = field(default_factory=list[str])  # its executables
    loops: set[int] = field(default_factory=set[int])
    traced: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]])  # loops, updates

    def takes(self, record: object) -> bool:
        """Whether the options ask for a record."""
        if isinstance(record, _GRAPH):
            return self.options.has_graph
        if isinstance(record, ExecutionTrace):
            update = record.loop, record.update
            if not self.options.has_execution or len({*self.traced, update}) > self.options.runs:
                return False
            self.traced.add(update)
        return True


class ProgramReports:
    """Takes the records of all strategies, and writes each into the directory of its program."""

    def __init__(self):
        """Makes no directory yet."""
        self._reports: dict[Owner, ProgramReport] = {}  # the newest of each
        self._loops: dict[int, LoopRecord] = {}  # as they were written last
        self._lock = threading.RLock()
        self._has_failed = False
        self._pid = os.getpid()
        atexit.register(self._process_ends)

    path = None  # each program has a directory of its own

    @property
    def process(self) -> int:
        """The number of this process in its run."""
        return process_index()

    def compiled(self, record: CompileRecord) -> None:
        """Writes the record of an executable, into a new directory if its program has none."""
        report = current_report()
        if report is None or record.origin is not Origin.COMPILED or os.getpid() != self._pid:
            return
        with self._lock:
            owner = _owner(record.model, record.program)
            own = self._reports.get(owner)
            try:
                if own is None or record.program in own.programs:
                    own = self._reports[owner] = self._new(report, owner)
                own.programs.append(record.program)
                own.run.directory.add(record)
                _write_framework(own, self._loop_of(owner), record)
            except (OSError, OptionError) as error:
                self._fail(report, error)

    def add(self, *records: object) -> None:
        """Takes records of one of `KINDS`; those of compilations come by `compiled`."""
        with self._lock:
            for record in records:
                if isinstance(record, LoopRecord):
                    self._loops[record.number] = record
                for report in self._reports_of(record):
                    if report.takes(record):
                        report.run.directory.add(record)
                if isinstance(record, LoopRecord) and record.ended:
                    self._loop_ends(record)

    def _loop_ends(self, loop: LoopRecord) -> None:
        del self._loops[loop.number]
        for report in self._reports.values():
            if loop.number in report.loops and report.run.page is not None:
                report.run.page.loop_has_ended()

    def _reports_of(self, record: object) -> list[ProgramReport]:
        """Returns the directories that a record belongs to."""
        if isinstance(record, CompileRecord):
            return []
        if isinstance(record, LoopRecord):
            own = self._reports.get(_owner_of_loop(record))
            if own is not None:
                own.loops.add(record.number)
            return [each for each in self._reports.values() if record.number in each.loops]
        loop = self._loops.get(getattr(record, "loop", -1))
        if isinstance(record, ProgramMemory | ProgramOperations):
            owner = _owner(record.model, record.program)
        elif isinstance(record, ExecutionTrace):
            owner = record.model, record.mode
        elif loop is None:
            owner = getattr(record, "model", ""), "train"
        else:
            owner = _owner_of_loop(loop)
            if isinstance(record, ExecutionSample | FeedSample) and loop.mode != "function":
                owner = owner[0], record.mode
        return [self._reports[owner]] if owner in self._reports else []

    def _new(self, options: AutoReport, owner: Owner) -> ProgramReport:
        """Makes a directory, with the records that it would have had from its begin on."""
        run = RecordedRun(_new_directory(options.directory))
        run.take_part(jax.local_devices())
        report = ProgramReport(options, run, owner)
        loop = self._loop_of(owner)
        if loop is not None:
            report.loops.add(loop.number)
            run.directory.add(loop)
        return report

    def _loop_of(self, owner: Owner) -> LoopRecord | None:
        """Returns the running loop in which a program is compiled: the innermost one."""
        model, name = owner
        running = [
            loop
            for loop in self._loops.values()
            if _owner_of_loop(loop) == owner or (model and loop.model == model)
        ]
        return max(running, key=lambda loop: (loop.mode == name, loop.number), default=None)

    def _fail(self, report: AutoReport, error: Exception) -> None:
        if not self._has_failed:
            self._has_failed = True
            logger.warning(
                "Reports of programs cannot be written into %s: %s. The run continues. Set "
                '"autoReport.directory" in %s to a directory that can be written to.',
                report.directory, error, VARIABLE,
            )  # fmt: skip

    def _process_ends(self) -> None:
        if os.getpid() == self._pid:
            for report in self._reports.values():
                if report.run.page is not None:
                    report.run.page.process_ends()


_lock = threading.Lock()
_sinks: weakref.WeakSet[RecordSinks] = weakref.WeakSet()  # of the strategies of this process
_taker: list[ProgramReports] = []  # what takes their records: one, once reports are asked for


def watch(sinks: RecordSinks) -> None:
    """Takes the records of a strategy from now on, if its programs are to leave reports."""
    with _lock:
        _sinks.add(sinks)
    read_engine_options()


def read_engine_options() -> None:
    """Takes the records of all strategies, once reports are asked for.

    Raises:
        OptionError: for an invalid value of the variable.
    """
    if current_report() is None:
        return
    with _lock:
        if not _taker:
            _taker.append(ProgramReports())
        for sinks in list(_sinks):
            if _taker[0] not in sinks:
                sinks.put_in(_taker[0])


class _Listener(ProgramListener):
    def compiled(self, record: CompileRecord) -> None:
        """Takes every record of an executable, also of functions outside of strategies."""
        for taker in _taker:
            taker.compiled(record)


def _owner(model: str, program: str) -> Owner:
    return (model, program.partition("_")[0]) if model else ("", program)


def _owner_of_loop(loop: LoopRecord) -> Owner:
    return ("", loop.model) if loop.mode == "function" else (loop.model, loop.mode)


def _new_directory(root: pathlib.Path) -> pathlib.Path:
    """Makes a directory whose name has the time; a later time if that one is taken.

    Raises:
        OSError: if it cannot be made.
    """
    root.mkdir(parents=True, exist_ok=True)
    milliseconds = round(1000 * time.time())
    while True:
        seconds, rest = divmod(milliseconds, 1000)
        stamp = time.strftime("%Y-%m-%d__%H-%M-%S", time.localtime(seconds))
        path = root / f"tf_report__{stamp}.{rest:03d}__{os.getpid()}"
        try:
            path.mkdir()
        except FileExistsError:
            milliseconds += 1
        else:
            return path.absolute()


def _write_framework(report: ProgramReport, loop: LoopRecord | None, record: CompileRecord) -> None:
    """Writes `framework.json` again, with one more executable.

    Raises:
        OSError: if it cannot be written.
    """
    model, name = report.owner
    path = report.run.directory.path / FRAMEWORK
    before = json.loads(path.read_text()) if path.exists() else {}
    options = dict(loop.options) if loop is not None else {}
    accumulation = options.get(_STEPS, "1")
    stages = loop.stages if loop is not None else 1
    values: Mapping[str, Any] = {
        "framework": "millrace",
        "versions": {each.__name__: each.__version__ for each in (jax, keras, millrace)},
        "model": model,
        "program": name,
        "executables": [
            *before.get("executables", []),
            {name: getattr(record, name) for name in _OF_EXECUTABLES},
        ],
        "stages": stages,
        "schedule": options.get(_SCHEDULE) if stages > 1 else None,
        "gradient_accumulation": int(accumulation) if accumulation.isdecimal() else 1,
        "replicas": loop.replicas if loop is not None else 1,
        "devices": list(loop.devices) if loop is not None else [],
        "parameters": loop.parameters if loop is not None else 0,
        "options": options,
        "began": before.get("began", record.began),
        "pid": os.getpid(),
    }
    part = path.with_suffix(".part")
    part.write_text(json.dumps(values, indent=2) + "\n")
    part.replace(path)


register_listener(_Listener())
