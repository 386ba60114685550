"""Counters of everything that ran under one strategy."""

import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager

from millrace.compiling.log import CompileLog
from millrace.export.exporting import Exports
from millrace.records.run import FeedStatistics, PipelineStatistics

_numbers = itertools.count(1)


def next_number() -> int:
    """Returns another number at each call: of a strategy or a model, in this process."""
    return next(_numbers)


class Totals:
    """What a strategy counts, logs and exports, over all of its models."""

    def __init__(self, compile_log: CompileLog | None = None) -> None:
        self.number = next_number()  # of the strategy
        self.compile_log = compile_log or CompileLog(is_rehearsal=True)
        self.exports = Exports()
        self.infeed = FeedStatistics()
        self.pipeline = PipelineStatistics()
        self.executions = 0
        self.dispatches = 0
        self.loop_seconds = 0.0
        self.loop_compile_seconds = 0.0
        self.noted: set[str] = set()  # what is logged once

    def is_new(self, note: str) -> bool:
        """Whether `note` was not logged before; from now on it was."""
        is_new = note not in self.noted
        self.noted.add(note)
        return is_new

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Surrounds fit, evaluate or predict, and adds the time that it takes."""
        begin, compiled = time.perf_counter(), self.compile_log.seconds
        try:
            yield
        finally:
            self.loop_seconds += time.perf_counter() - begin
            self.loop_compile_seconds += self.compile_log.seconds - compiled
