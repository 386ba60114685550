"""The records of functions and loops of the user's own: one loop record for each function.

strategy.run(train, ...)          a call is one execution
millrace.repeat(1000, body)       likewise, of 1,000 steps, in a scope and outside of strategy.run
a compiled function               likewise

What runs within such a call belongs to it.
"""

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence

import jax

from millrace.base.devices import device_name
from millrace.base.records.loops import LoopRecord
from millrace.base.threads.scoped_value import Binding, ScopedValue
from millrace.run.fit.totals import Totals, next_loop
from millrace.run.recording.loop_recorder import LoopWriter
from millrace.tools.recording.run import RecordedRun

MANY = 1000  # functions with a record of their own; calls of others are those of one more
OTHERS = "other functions"


class FunctionRecorder:
    """Writes the records of the functions that run under one strategy."""

    def __init__(self, totals: Totals, run: RecordedRun | None, devices: Sequence[jax.Device]):
        """Begins with no function.

        Args:
            totals: of the strategy.
            run: of the strategy, if it has one.
            devices: of the strategy.
        """
        self.totals, self._run, self._devices = totals, run, tuple(map(device_name, devices))
        self._lock = threading.Lock()
        self._idle: dict[str, list[LoopWriter]] = {}  # not in a call
        self._count = 0

    def take(self, name: str) -> LoopWriter:
        """Returns the writer of a function that is about to be called; one for each thread."""
        with self._lock:
            if self._count >= MANY and not self._idle.get(name):
                name = OTHERS
            if idle := self._idle.get(name):
                return idle.pop()
            self._count += 1
            record = LoopRecord(
                number=next_loop(),
                process=self.totals.sinks.process,
                model=name,
                mode="function",
                began=time.time(),
                devices=self._devices,
            )
            writer = LoopWriter(record, self.totals.sinks, stays_open=True)
            if self._run is not None:
                self._run.open_loops.append(writer)
            return writer

    def give_back(self, writer: LoopWriter) -> None:
        """Takes a writer back after the call."""
        with self._lock:
            self._idle.setdefault(writer.record.model, []).append(writer)


_recorder = ScopedValue[FunctionRecorder | None](None)


def functions_recorded_by(recorder: FunctionRecorder) -> Binding[FunctionRecorder | None]:
    """Surrounds a scope: functions that are called inside leave records."""
    return _recorder.bound_to(recorder)


def recorded_call(name: str, steps: int = 1) -> contextlib.AbstractContextManager[object]:
    """Surrounds the call of a function or a loop.

    Args:
        name: of the function.
        steps: of the loop.
    """
    recorder = _recorder.get()
    if recorder is None or not recorder.totals.sinks:
        return _NOTHING
    return _recorded(recorder, name, steps)


_NOTHING = contextlib.nullcontext()


@contextlib.contextmanager
def _recorded(recorder: FunctionRecorder, name: str, steps: int) -> Iterator[None]:
    writer = recorder.take(name)
    writer.begin_call(None, {}, recorder.totals.compile_log)
    writer.begins(None, 0)
    begin, error = time.perf_counter(), None
    try:
        with _recorder.bound_to(None):
            yield
        writer.executed(steps, time.perf_counter() - begin, {})
    except BaseException as raised:
        error = raised
        raise
    finally:
        writer.end(error)
        recorder.give_back(writer)
