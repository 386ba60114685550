"""Counters of everything that ran under one strategy, whose models may train in several threads."""

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from millrace.base.records.sinks import RecordSinks
from millrace.base.records.statistics import FeedStatistics, PipelineStatistics
from millrace.base.threads.scoped_value import Notes
from millrace.compilation.executables.log import CompileLog
from millrace.compilation.export.exporting import Exports
from millrace.run.fit.recorders import LoopRecorders
from millrace.run.timing.tracer import TraceBudget

_numbers = itertools.count(1)
_loops = itertools.count()
_lock = threading.Lock()


def next_number() -> int:
    """Returns another number at each call: of a strategy or a model, in this process."""
    return next(_numbers)


def next_loop() -> int:
    """Returns another number at each call: of a loop, in this process, from 0."""
    return next(_loops)


def begin_loops_after(number: int) -> None:
    """Gives later loops numbers above one that another process has written into the same run."""
    global _loops
    with _lock:
        _loops = itertools.count(max(next(_loops), number + 1))


class ExecutionTracer(Protocol):
    """Is called around executions."""

    def begin(self, model: str, mode: str, steps: int, state: object) -> None:
        """Before an execution of `steps` steps, with the values that it begins with."""
        ...

    def end(self, model: str, mode: str, steps: int, results: object) -> None:
        """After it; without results if it failed."""
        ...


class Totals:
    """The counters, the log and the exports of a strategy, over all of its models."""

    def __init__(
        self,
        compile_log: CompileLog | None = None,
        sinks: RecordSinks | None = None,
        memory: int | None = None,
    ) -> None:
        """Begins at zero.

        Args:
            compile_log: of the strategy; None for a dry run.
            sinks: of the records of the strategy; None for a dry run.
            memory: bytes of one device that training may take; None for no such limit.
        """
        self.number = next_number()  # of the strategy
        self.compile_log = compile_log or CompileLog(is_dry_run=True)
        self.sinks = RecordSinks() if sinks is None else sinks
        self.memory = memory
        self.recorders: LoopRecorders | None = None  # make what writes the records of loops
        self.exports = Exports()
        self.trace_budget = TraceBudget()
        self.infeed = FeedStatistics()
        self.pipeline = PipelineStatistics()
        self.operation_trace: ExecutionTracer | None = None
        self.executions = 0
        self.dispatches = 0
        self.loop_seconds = 0.0
        self.loop_compile_seconds = 0.0
        self.notes = Notes()  # what is logged once
        self._lock = threading.Lock()

    @property
    def records(self) -> RecordSinks | None:
        """Takes records of the run; None while nothing is recorded."""
        return self.sinks or None

    def add_execution(self, dispatches: int, pipeline: PipelineStatistics | None) -> None:
        """Counts an execution.

        Args:
            dispatches: calls of executables in it.
            pipeline: counts of the tasks of a pipelined model, this execution included.
        """
        with self._lock:
            self.executions += 1
            self.dispatches += dispatches
            self.pipeline = pipeline or self.pipeline

    def add_infeed(self, statistics: FeedStatistics) -> None:
        """Adds the counts of an infeed that has ended."""
        with self._lock:
            self.infeed += statistics

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Surrounds fit, evaluate or predict, and adds the time that it takes."""
        begin, compiled = time.perf_counter(), self.compile_log.seconds
        try:
            yield
        finally:
            seconds = time.perf_counter() - begin
            compile_seconds = self.compile_log.seconds - compiled
            with self._lock:
                self.loop_seconds += seconds
                self.loop_compile_seconds += compile_seconds
