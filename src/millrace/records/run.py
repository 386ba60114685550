"""A run directory, and the records in it.

    compile_log.jsonl    one CompileRecord in each line, written when it is made

Lines are complete or missing, also after a run was killed. A later line about a switch replaces an
earlier one about the same switch.
"""

import json
import pathlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from millrace.errors import DataError, OptionError
from millrace.records.compilation import CompileRecord, Origin, ProgramKey
from millrace.records.memory import bytes_text
from millrace.records.memory_report import BudgetChoice

COMPILE_LOG = "compile_log"


class RunDirectory:
    """Writes records into a directory, at the end of existing files."""

    def __init__(self, directory: str | pathlib.Path, process: int = 0):
        """Makes the directory.

        Args:
            directory: of the run.
            process: number of this process in the run; each writes its own file.

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
        suffix = f".{process}" if process else ""
        self._compile_log = self.path / f"{COMPILE_LOG}{suffix}.jsonl"

    def add_compile_record(self, record: CompileRecord) -> None:
        """Writes a record at the end of the file."""
        values = {**asdict(record), "origin": record.origin.value}
        with self._compile_log.open("a", encoding="utf-8") as file:
            file.write(json.dumps(values) + "\n")


def read_compile_log(path: str | pathlib.Path) -> tuple[CompileRecord, ...]:
    """Reads the records of a run, of all its processes, in the order of their begin.

    Args:
        path: a run directory, or one file of it.

    Raises:
        DataError: if there is no compile log.
    """
    path = pathlib.Path(path)
    files = [path] if path.is_file() else sorted(path.glob(f"{COMPILE_LOG}*.jsonl"))
    if not files:
        raise DataError(
            f"{path} has no compile log. Set Strategy(report_dir=...) to a directory, and give "
            "that one."
        )
    records: list[CompileRecord] = []
    for file in files:
        records += _read(file)
    return tuple(sorted(records, key=lambda record: record.began))


def _read(file: pathlib.Path) -> list[CompileRecord]:
    records: dict[Any, CompileRecord] = {}
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise _no_log(file, 1) from error
    for number, line in enumerate(lines, 1):
        try:
            values = json.loads(line)
        except ValueError:
            if number == 1 and not line.lstrip().startswith("{"):
                raise _no_log(file, number) from None
            continue  # the last line of a run that was killed
        try:
            record = _record(values)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise _no_log(file, number) from error
        key = (record.cause, record.began) if not record.is_executable else number
        records[key] = record
    return list(records.values())


def _record(values: Mapping[str, Any]) -> CompileRecord:
    names = {field.name for field in fields(CompileRecord)}  # a newer version may have more
    arguments: dict[str, Any] = {name: value for name, value in values.items() if name in names}
    arguments["origin"] = Origin(values["origin"])
    return CompileRecord(**arguments)


def _no_log(file: pathlib.Path, line: int) -> DataError:
    return DataError(
        f"Line {line} of {file} is not a record of a compilation. Give the directory of "
        f"Strategy(report_dir=...) or a {COMPILE_LOG}*.jsonl in it, and read it with the millrace "
        "that wrote it, or a newer one."
    )


@dataclass(frozen=True, slots=True)
class FeedStatistics:
    """Counts of one infeed, or of several added up."""

    blocks: int = 0  # blocks handed to the loop
    steps: int = 0  # batches in them
    bytes: int = 0  # of these batches, on the device
    prepare_seconds: float = 0.0  # the feeding thread: reading, stacking, starting the transfer
    wait_seconds: float = 0.0  # the training loop, for a block that was not ready
    peak_depth: int = 0  # most blocks that were ready at one time

    def __add__(self, other: "FeedStatistics") -> "FeedStatistics":
        """Adds counts and seconds, and takes the higher peak."""
        return FeedStatistics(
            blocks=self.blocks + other.blocks,
            steps=self.steps + other.steps,
            bytes=self.bytes + other.bytes,
            prepare_seconds=self.prepare_seconds + other.prepare_seconds,
            wait_seconds=self.wait_seconds + other.wait_seconds,
            peak_depth=max(self.peak_depth, other.peak_depth),
        )


@dataclass(frozen=True, slots=True)
class PipelineStatistics:
    """Counts of the last execution of a pipelined model, and of all executions before it."""

    executions: int = 0
    tasks: int = 0
    dispatch_seconds: float = 0.0  # the host, over all tasks
    last_tasks: int = 0  # of the last execution
    last_task_seconds: float = 0.0  # the host, median over the tasks of the last execution
    last_in_flight: tuple[int, ...] = ()  # most activation sets that each stage held at once


@dataclass(frozen=True, slots=True)
class EntryLabels:
    """The description of an executable in the user's words; not used to look it up."""

    model: str = ""
    program: str = ""  # such as "train_run"; empty if millrace did not ask for it
    batch: str = ""
    key: ProgramKey | None = None
    layers: tuple[
        str, ...
    ] = ()  # names of the model's layers, in order; XLA's operations have them


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """One file with an executable, on disk."""

    path: pathlib.Path
    nbytes: int
    used: float  # seconds since 1970, of its last use
    module: str = ""  # JAX's name of it, such as "jit_run"
    model: str = ""
    program: str = ""
    batch: str = ""
    created: float = 0.0  # seconds since 1970

    @property
    def environment(self) -> str:
        """Its version, platform and processor."""
        return self.path.parent.name


@dataclass(frozen=True, slots=True)
class CacheStatistics:
    """The contents of a cache of executables, and its use by this process."""

    directory: pathlib.Path | None  # None without a cache
    entries: int = 0  # on disk, of all versions
    nbytes: int = 0  # on disk
    limit: int = 0  # bytes, beyond which the least recently used are removed; 0 is no limit
    hits: int = 0  # executables that were read instead of compiled
    misses: int = 0
    corrupt: int = 0  # files that were removed because they were damaged
    evicted: int = 0  # files that this process removed for the limit


_FEW_STEPS = 20  # too few for a hint to longer executions
_LONG_WAIT = 0.2  # of the loops' time, from which on the data set deserves a hint
_LONG_SECONDS = 1.0
_OFTEN = 3  # recompilations, from which on there is a hint


@dataclass(frozen=True, slots=True)
class RunStatistics:
    """Totals over all runs of one strategy so far. Prints as a table."""

    executions: int  # calls of the loop's function: `steps_per_execution` steps each
    dispatches: int  # calls of compiled code behind them
    compilations: int  # by XLA
    compile_seconds: float  # tracing, lowering, compiling and reading
    infeed: FeedStatistics
    pipeline: PipelineStatistics  # of the pipelined function that ran last
    cache_hits: int = 0  # executables read from the cache on disk
    shared: int = 0  # executables of an equal, earlier program
    loaded: int = 0  # executables that another process has exported
    switches: int = 0  # calls of another function than before
    loop_seconds: float = 0.0  # from the begin of fit, evaluate and predict to their end
    loop_compile_seconds: float = 0.0  # the part of `compile_seconds` within loops
    recompilations: int = 0  # of programs that a model had run before in another form
    recompile_seconds: float = 0.0
    budgets: tuple[BudgetChoice, ...] = ()  # choices of recomputation budgets, in order

    def __str__(self) -> str:
        return "\n".join([*self._rows(), *(f"Hint: {hint}" for hint in self._hints())])

    def _rows(self) -> Iterator[str]:
        compiling = min(self.loop_compile_seconds, self.loop_seconds)
        waiting = min(self.infeed.wait_seconds, self.loop_seconds - compiling)
        others = self.loop_seconds - compiling - waiting
        feed, steps = self.infeed, self.infeed.steps
        yield self._row("fit, evaluate, predict", self.loop_seconds, _counted(steps, "step"))
        yield self._row("  compiling", compiling, self._executables())
        fed = f"{_counted(feed.blocks, 'block')}, {bytes_text(feed.bytes)}"
        yield self._row("  waiting for data", waiting, fed)
        runs = f"{_counted(self.executions, 'execution')}, {_counted(self.dispatches, 'call')}"
        yield self._row("  steps, and Keras", others, runs)
        if (elsewhere := self.compile_seconds - self.loop_compile_seconds) > 0.005:
            yield f"{'compiling elsewhere':<22} {elsewhere:9.2f} s"
        if self.pipeline.executions:
            host, tasks = self.pipeline.dispatch_seconds, self.pipeline.tasks
            yield f"{'pipeline, on the host':<22} {host:9.2f} s         {tasks:,} tasks"

    def _row(self, name: str, seconds: float, details: str) -> str:
        share = seconds / self.loop_seconds if self.loop_seconds else 0.0
        return f"{name:<22} {seconds:9.2f} s {share:6.1%}  {details}"

    def _executables(self) -> str:
        counts = {
            "compiled": self.compilations,
            "from the cache": self.cache_hits,
            "shared": self.shared,
            "loaded": self.loaded,
        }
        shown = [f"{count} {name}" for name, count in counts.items() if count]
        return ", ".join(shown) or "nothing compiled"

    def _hints(self) -> Iterator[str]:
        if _FEW_STEPS <= self.infeed.steps <= self.executions:
            yield (
                "each execution ran a single step, as without a strategy. Set "
                "model.compile(..., steps_per_execution=100) to run 100 in one call."
            )
        if self.infeed.wait_seconds > max(_LONG_SECONDS, _LONG_WAIT * self.loop_seconds):
            yield (
                "the loops waited for data. millrace.feed_verdict(model, dataset) says how much "
                "faster training could be, and what to change."
            )
        if self.recompilations >= _OFTEN:
            yield (
                f"{self.recompilations} programs were compiled again, for "
                f"{self.recompile_seconds:.1f} s. strategy.compile_log has the cause and the "
                "remedy of each; Strategy(on_recompile='warn') warns of them."
            )


def _counted(number: int, name: str) -> str:
    return f"{number:,} {name}" if number == 1 else f"{number:,} {name}s"
