"""A run, read from the records that it has left, or is still writing.

run = millrace.records.load("runs/7")
run.timeline.bubble
run.memory["train"].peak.tensors[0].layer
"""

import pathlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, cast

from millrace.base.records.codec import decode, short_text
from millrace.base.records.compilation import CompileRecord
from millrace.base.records.compile_table import CompileRecords
from millrace.base.records.directory import COMPILE_LOG, FORMAT, KINDS, VERSION
from millrace.base.records.flight import FlightNote
from millrace.base.records.json_text import parse_json
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
from millrace.base.records.table_text import RecordRows, TableRecord
from millrace.base.records.tensors import TensorSeries
from millrace.base.records.timeline import Timeline
from millrace.base.records.trace import ExecutionTrace
from millrace.base.records.trace_groups import update_traces
from millrace.base.records.validity import check_record
from millrace.errors import DataError

_NAMED = 8  # programs
_LARGEST_LOOP = 2**53  # above any number of loops that a process could have run


class MemoryProfiles(dict[str, ProgramMemory]):
    """The memory of the programs of a run: by program, and by "train", "test" and "predict".

    One of the three words stands for the program of that mode which needs the most on a device.
    """

    def __init__(self, profiles: Iterable[ProgramMemory]):
        for each in profiles:
            for name in (each.program, each.program.partition("_")[0]):
                before = self.setdefault(name, each)
                if (before.is_trial, each.requirement) >= (each.is_trial, before.requirement):
                    self[name] = each

    def __repr__(self) -> str:
        return f"MemoryProfiles({', '.join([*self][:_NAMED])}, {len(self):,} in all)"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RunRecords(TableRecord):
    """The records of a run, of all its processes, in the order in which they were written."""

    path: pathlib.Path
    processes: tuple[ProcessRecord, ...] = ()  # each once; again if the run was started again
    loops: tuple[LoopRecord, ...] = ()  # each once, in the order of their begin
    epochs: tuple[EpochRecord, ...] = ()
    executions: tuple[ExecutionSample, ...] = ()
    feeds: tuple[FeedSample, ...] = ()
    compilations: tuple[CompileRecord, ...] = ()
    memory_profiles: tuple[ProgramMemory, ...] = ()
    operations: tuple[ProgramOperations, ...] = ()
    traces: tuple[ExecutionTrace, ...] = ()  # those of one update, of all processes, as one
    tensors: tuple[TensorSeries, ...] = ()
    budgets: tuple[BudgetChoice, ...] = ()
    memory_reports: tuple[MemoryReport, ...] = ()
    flights: tuple[FlightNote, ...] = ()
    damaged: Mapping[str, int] = field(default_factory=dict[str, int])  # lines left out, by file

    @property
    def memory(self) -> MemoryProfiles:
        """The memory of its programs: `run.memory["train"].peak`."""
        return MemoryProfiles(self.memory_profiles)

    @property
    def trace(self) -> ExecutionTrace | None:
        """The trace of median length; None if nothing was traced.

        That is one of a pipeline rather than of a model in one piece, and of training rather than
        of evaluation.
        """
        ranks = [(bool(each.spans), each.mode == "train") for each in self.traces]
        best = max(ranks, default=None)
        among = [each for each, rank in zip(self.traces, ranks, strict=True) if rank == best]
        among.sort(key=lambda each: each.seconds)
        return among[len(among) // 2] if among else None

    @property
    def timeline(self) -> Timeline:
        """The tasks of the update of median length; no tasks if nothing was traced."""
        return self.trace.timeline if self.trace is not None else Timeline((), 0)


def load(directory: str | pathlib.Path) -> RunRecords:
    """Reads the records of a run; see `tools.reports.summary.load`."""
    path = run_path(directory)
    damaged: dict[str, int] = {}
    read: dict[str, Any] = {kind: tuple(_read_kind(path, kind, damaged)) for kind in KINDS}
    processes = _last(read["processes"], "process", "host", "pid", "began")
    loops = _last(read["loops"], "process", "number", "began")
    put_together: dict[str, Any] = {
        "processes": sorted(processes, key=attrgetter("process", "began")),
        "loops": sorted(loops, key=attrgetter("began")),
        "compilations": read_compile_log(path) if read.pop(COMPILE_LOG) else (),
        "memory_profiles": read.pop("memory"),
        # Records of operations with times come after those without.
        "operations": _last(read["operations"], "model", "program", "stage", "key"),
        "traces": update_traces(read["traces"]),
    }
    records = {name: RecordRows(each) for name, each in (read | put_together).items()}
    records["compilations"] = CompileRecords(records["compilations"])
    return RunRecords(path=path, damaged=damaged, **cast(Any, records))


def run_path(directory: str | pathlib.Path) -> pathlib.Path:
    """Returns the directory of a run: itself, or the run in it that began last.

    Raises:
        DataError: if there are no records.
    """
    path = pathlib.Path(directory)
    if _files(path):
        return path
    runs = [each for each in path.glob("*/") if _files(each)] if path.is_dir() else []
    if not runs:
        what = "is no directory" if not path.is_dir() else "has no records of a run"
        raise DataError(
            f"{path} {what}. Set Strategy(report_dir=...) or MILLRACE_REPORT_DIR to a directory, "
            "run the program, and give that one."
        )
    return max(runs, key=lambda run: (max(file.stat().st_mtime for file in _files(run)), run.name))


def has_records(path: pathlib.Path) -> bool:
    """Whether a directory has records of a run itself."""
    return bool(_files(path))


def _files(path: pathlib.Path) -> list[pathlib.Path]:
    return [file for kind in KINDS for file in _files_of(path, kind)]


def _files_of(path: pathlib.Path, kind: str) -> list[pathlib.Path]:
    files = [*path.glob(f"{kind}.jsonl"), *path.glob(f"{kind}.[0-9]*.jsonl")]
    return sorted(file for file in files if file.is_file())


def _read_kind(path: pathlib.Path, kind: str, damaged: dict[str, int]) -> list[Any]:
    records: list[Any] = []
    for file in _files_of(path, kind):
        for _, values in _lines(file, kind, damaged):
            try:
                records.append(_record(kind, values))
            except ValueError:
                damaged[file.name] = damaged.get(file.name, 0) + 1
    return records


def _record(kind: str, values: object) -> Any:
    record = decode(cast(type[object], KINDS[kind]), values)
    check_record(record)
    return record


def _lines(
    file: pathlib.Path, kind: str, damaged: dict[str, int]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields the objects in a file of records, without its header, and the number of its line."""
    for number, line in enumerate(_text(file).splitlines(), 1):
        try:
            values = parse_json(line)
        except ValueError:
            if line:  # of a run that was killed
                damaged[file.name] = damaged.get(file.name, 0) + 1
            continue
        if isinstance(values, dict) and cast(dict[str, Any], values).get("format") == FORMAT:
            _check_header(file, kind, cast(dict[str, Any], values))
        else:
            yield number, values


def _text(file: pathlib.Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise DataError(
            f"{file} cannot be read: {error.strerror}. Give a directory whose files you may read."
        ) from error


def _check_header(file: pathlib.Path, kind: str, header: Mapping[str, Any]) -> None:
    version, found = header.get("version"), header.get("kind")
    if not isinstance(version, int) or version > VERSION or found != kind:
        raise DataError(
            f"{file} has records of version {short_text(version)} and of the kind "
            f"{short_text(found)}; this millrace reads version {VERSION} of the kind {kind!r}. "
            "Read it with the millrace that wrote it, or a newer one."
        )


def last_loop(directory: pathlib.Path, process: int) -> int:
    """Returns the highest number of a loop that a process has written before; -1 for none."""
    suffix = f".{process}" if process else ""
    file = directory / f"loops{suffix}.jsonl"
    if not file.is_file():
        return -1
    lines = (values for _, values in _lines(file, "loops", {}))
    loops = (values.get("number") for values in lines if type(values) is dict)
    numbers = (number for number in loops if type(number) is int and number < _LARGEST_LOOP)
    return max(numbers, default=-1)


def _last(records: Iterable[Any], *names: str) -> list[Any]:
    """Returns the last of those records that are equal in some fields."""
    return list({attrgetter(*names)(each): each for each in records}.values())


def read_compile_log(path: str | pathlib.Path) -> CompileRecords:
    """Reads the compile log of a run, of all its processes, in the order of their begin.

    Args:
        path: a run directory, a directory of several, or one file of it.

    Raises:
        DataError: if there is no compile log.
    """
    path = pathlib.Path(path)
    files = [path] if path.is_file() else _files_of(path, COMPILE_LOG)
    if not files and path.is_dir() and any(_files(each) for each in path.glob("*/")):
        files = _files_of(run_path(path), COMPILE_LOG)
    if not files:
        raise DataError(
            f"{path} has no compile log. Set Strategy(report_dir=...) to a directory, and give "
            "that one."
        )
    records: list[CompileRecord] = []
    for file in files:
        records += _compile_records(file)
    return CompileRecords(sorted(records, key=lambda record: record.began))


def _compile_records(file: pathlib.Path) -> list[CompileRecord]:
    """Reads one file. A later line about a switch replaces an earlier one about the same switch."""
    records: dict[Any, CompileRecord] = {}
    first = _text(file).splitlines()[:1]
    if any(not line.lstrip().startswith("{") for line in first):
        raise _no_log(file, 1)
    for number, values in _lines(file, COMPILE_LOG, {}):
        try:
            record = _record(COMPILE_LOG, values)
        except ValueError as error:
            raise _no_log(file, number) from error
        key = (record.cause, record.began) if not record.is_executable else number
        records[key] = record
    return list(records.values())


def _no_log(file: pathlib.Path, line: int) -> DataError:
    return DataError(
        f"Line {line} of {file} is not a record of a compilation. Give the directory of "
        f"Strategy(report_dir=...) or a {COMPILE_LOG}*.jsonl in it, and read it with the millrace "
        "that wrote it, or a newer one."
    )
