"""Counts and times of a strategy so far."""

import operator
from dataclasses import astuple, dataclass
from typing import Any

from rich.console import Console

from millrace.base.records.memory import bytes_text
from millrace.base.records.memory_report import BudgetChoice
from millrace.base.records.printable import counted
from millrace.base.records.table_text import TableRecord, plain_table


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
            *map(operator.add, _added(self), _added(other)),
            peak_depth=max(self.peak_depth, other.peak_depth),
        )

    def since(self, before: "FeedStatistics") -> "FeedStatistics":
        """Returns what was counted after an earlier moment; the peak is of all time."""
        counts = map(operator.sub, _added(self), _added(before))
        return FeedStatistics(*counts, peak_depth=self.peak_depth)


def _added(statistics: FeedStatistics) -> tuple[Any, ...]:
    """Returns the fields that are added up."""
    return astuple(statistics)[:-1]


@dataclass(frozen=True, slots=True)
class UpdateSeconds:
    """What the time of updates went to in this process, for a pipeline over processes.

    The parts add up to the wall clock of the updates.
    """

    updates: int = 0
    devices: float = 0.0  # they compute, here and in other processes, and arrays move
    dispatch: float = 0.0  # Python, and JAX's calls
    feed: float = 0.0  # waiting for batches

    def __add__(self, other: "UpdateSeconds") -> "UpdateSeconds":
        """Adds all parts."""
        return UpdateSeconds(*map(operator.add, astuple(self), astuple(other)))

    @property
    def total(self) -> float:
        """The wall clock of the updates."""
        return sum(self.parts.values())

    @property
    def parts(self) -> dict[str, float]:
        """Seconds by the name of each part."""
        return {
            "waiting for devices": self.devices,
            "dispatch": self.dispatch,
            "waiting for data": self.feed,
        }


@dataclass(frozen=True, slots=True)
class PipelineStatistics:
    """Counts of the last execution of a pipelined model, and of all executions before it."""

    executions: int = 0
    tasks: int = 0
    dispatch_seconds: float = 0.0  # the host, over all tasks
    last_tasks: int = 0  # of the last execution
    last_task_seconds: float = 0.0  # the host, median over the tasks of the last execution
    last_in_flight: tuple[int, ...] = ()  # most activation sets that each stage held at once
    seconds: UpdateSeconds | None = None  # None: not known, see `UpdateSeconds`


@dataclass(frozen=True, slots=True, repr=False)
class RunStatistics(TableRecord):
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

    def _print(self, console: Console) -> None:
        table = plain_table("", ">", ">", "")

        def row(name: str, seconds: float, of: float = 0.0, details: str = "") -> None:
            table.add_row(name, f"{seconds:.2f} s", f"{seconds / of:.1%}" if of else "", details)

        whole, feed, pipeline = self.loop_seconds, self.infeed, self.pipeline
        compiling = min(self.loop_compile_seconds, whole)
        waiting = min(feed.wait_seconds, whole - compiling)
        row("fit, evaluate, predict", whole, whole, counted(feed.steps, "step"))
        row("  compiling", compiling, whole, self._executables())
        fed = f"{counted(feed.blocks, 'block')}, {bytes_text(feed.bytes)}"
        row("  waiting for data", waiting, whole, fed)
        runs = f"{counted(self.executions, 'execution')}, {counted(self.dispatches, 'call')}"
        row("  steps, and Keras", whole - compiling - waiting, whole, runs)
        if (elsewhere := self.compile_seconds - self.loop_compile_seconds) > 0.005:
            row("compiling elsewhere", elsewhere)
        if pipeline.executions:
            tasks = counted(pipeline.tasks, "task")
            row("pipeline, on the host", pipeline.dispatch_seconds, details=tasks)
        if (seconds := pipeline.seconds) is not None and seconds.total:
            updates = counted(seconds.updates, "update")
            row("pipeline, updates", seconds.total, details=updates)
            for name, part in seconds.parts.items():
                row(f"  {name}", part, seconds.total)
        console.print(table)

    def _executables(self) -> str:
        counts = {
            "compiled": self.compilations,
            "from the cache": self.cache_hits,
            "shared": self.shared,
            "loaded": self.loaded,
        }
        shown = [f"{count} {name}" for name, count in counts.items() if count]
        return ", ".join(shown) or "nothing compiled"
