"""Counts and times of a strategy so far."""

import operator
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from millrace.base.records.memory import bytes_text
from millrace.base.records.memory_report import BudgetChoice
from millrace.base.records.printable import counted
from millrace.base.records.table_text import TextRecord


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
    values = [getattr(statistics, each.name) for each in fields(statistics)]
    return tuple(values[:-1])


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
        return UpdateSeconds(
            updates=self.updates + other.updates,
            devices=self.devices + other.devices,
            dispatch=self.dispatch + other.dispatch,
            feed=self.feed + other.feed,
        )

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


@dataclass(frozen=True, slots=True)
class RunStatistics(TextRecord):
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
        return "\n".join(self._rows())

    def _rows(self) -> Iterator[str]:
        compiling = min(self.loop_compile_seconds, self.loop_seconds)
        waiting = min(self.infeed.wait_seconds, self.loop_seconds - compiling)
        others = self.loop_seconds - compiling - waiting
        feed, steps = self.infeed, self.infeed.steps
        yield self._row("fit, evaluate, predict", self.loop_seconds, counted(steps, "step"))
        yield self._row("  compiling", compiling, self._executables())
        fed = f"{counted(feed.blocks, 'block')}, {bytes_text(feed.bytes)}"
        yield self._row("  waiting for data", waiting, fed)
        runs = f"{counted(self.executions, 'execution')}, {counted(self.dispatches, 'call')}"
        yield self._row("  steps, and Keras", others, runs)
        if (elsewhere := self.compile_seconds - self.loop_compile_seconds) > 0.005:
            yield f"{'compiling elsewhere':<22} {elsewhere:9.2f} s"
        if self.pipeline.executions:
            host, tasks = self.pipeline.dispatch_seconds, self.pipeline.tasks
            yield f"{'pipeline, on the host':<22} {host:9.2f} s         {tasks:,} tasks"
        if (seconds := self.pipeline.seconds) is not None and seconds.total:
            yield f"{'pipeline, updates':<22} {seconds.total:9.2f} s         {seconds.updates:,}"
            for name, part in seconds.parts.items():
                yield f"{'  ' + name:<25} {part:6.2f} s {part / seconds.total:6.1%}"

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
