"""The destinations of a strategy's records: one directory, several, or none."""

import pathlib
import threading
from collections.abc import Iterator
from typing import Protocol


class RecordSink(Protocol):
    """Takes records, and never raises an error about them."""

    @property
    def process(self) -> int:
        """The number of this process in the run."""
        ...

    @property
    def path(self) -> pathlib.Path | None:
        """The directory of the run; None if it is not one of a run."""
        ...

    def add(self, *records: object) -> None:
        """Takes records of one of `millrace.base.records.directory.KINDS`."""
        ...


class RecordSinks:
    """Hands every record to all sinks of a strategy, which come and go."""

    def __init__(self, *sinks: RecordSink):
        self._sinks = sinks
        self._lock = threading.Lock()

    def __bool__(self) -> bool:
        return bool(self._sinks)

    def __iter__(self) -> Iterator[RecordSink]:
        return iter(self._sinks)

    @property
    def process(self) -> int:
        """The number of this process in the run; 0 without a sink."""
        return self._sinks[0].process if self._sinks else 0

    @property
    def path(self) -> pathlib.Path | None:
        """The directory of the run, of several the first; None without one."""
        return next((each.path for each in self._sinks if each.path is not None), None)

    def add(self, *records: object) -> None:
        """Hands records of the same kind to all sinks."""
        for sink in self._sinks:
            sink.add(*records)

    def put_in(self, sink: RecordSink) -> None:
        """Hands records to this sink, too, from now on."""
        with self._lock:
            self._sinks = (*self._sinks, sink)

    def take_out(self, sink: RecordSink) -> None:
        """Hands no more records to a sink."""
        with self._lock:
            self._sinks = tuple(each for each in self._sinks if each is not sink)
