"""Counters of everything that ran under one strategy, whose models may train in several threads."""

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from millrace.compiling.log import CompileLog
from millrace.export.exporting import Exports
from millrace.records.directory import RunDirectory
from millrace.records.statistics import FeedStatistics, PipelineStatistics
from millrace.threads.scoped_value import Notes
from millrace.timing.tracer import TraceBudget

_numbers = itertools.count(1)


def next_number() -> int:
    """Returns another number at each call: of a strategy or a model, in this process."""
    return next(_numbers)


class Totals:
    """The counters, the log and the exports of a strategy, over all of its models."""

    def __init__(
        self, compile_log: CompileLog | None = None, records: RunDirectory | None = None
    ) -> None:
        """Begins at zero.

        Args:
            compile_log: of the strategy; None for a dry run.
            records: where records of the run are written, if anywhere.
        """
        self.number = next_number()  # of the strategy
        self.compile_log = compile_log or CompileLog(is_dry_run=True)
        self.records = records
        self.exports = Exports()
        self.trace_budget = TraceBudget()
        self.infeed = FeedStatistics()
        self.pipeline = PipelineStatistics()
        self.executions = 0
        self.dispatches = 0
        self.loop_seconds = 0.0
        self.loop_compile_seconds = 0.0
        self.notes = Notes()  # what is logged once
        self._loops = itertools.count()
        self._lock = threading.Lock()

    def next_loop(self) -> int:
        """Returns another number at each call: of a loop, from 0."""
        return next(self._loops)

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
