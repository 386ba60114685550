"""Writes the records of one loop while it runs.

begin                  LoopRecord, "running"
a sample's time later  ExecutionSample, FeedSample, EpochRecord      samples.py, pace.py
now and then           LoopRecord, "running", with the counts so far
end                    the samples that are left, and LoopRecord, "finished"

Lines are written when an execution begins and a sample is due, so a loop that is killed has left
all but its last samples.
"""

import functools
import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any, ParamSpec

import keras

from millrace._compat.keras_loops import first_epoch
from millrace.base.records.loops import EpochRecord, ExecutionSample, LoopRecord, Outcome
from millrace.base.records.sinks import RecordSinks
from millrace.base.threads.scoped_value import Notes
from millrace.compilation.executables.log import CompileLog
from millrace.programs.feeds.infeed import Infeed
from millrace.programs.plan import Mode
from millrace.run.recording import pace
from millrace.run.recording.epochs import EpochHistory
from millrace.run.recording.samples import ExecutionCounts, FeedWatch, compile_seconds, of_loop

P = ParamSpec("P")

logger = logging.getLogger("millrace")

_SHOWN = 500  # characters of an error
_notes = Notes()  # what this process has said


def without_errors(method: Callable[P, None]) -> Callable[P, None]:
    """Returns a method of a recorder that logs its errors, once: training continues without it."""

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            method(*args, **kwargs)
        except Exception:  # of any kind: training is worth more than its records
            if _notes.is_new("incomplete"):
                logger.warning("Records of this run are incomplete.", exc_info=True)

    return call


class LoopWriter:
    """Writes the records of a loop.

    Of calls that are short and many, such as `train_on_batch`, one record is kept open:
    `begin_call` and `end` surround each of them, and `close` ends it.
    """

    def __init__(self, record: LoopRecord, sinks: RecordSinks, *, stays_open: bool):
        """Writes nothing yet.

        Args:
            record: of the loop.
            sinks: take the records.
            stays_open: whether one record is written for several calls.
        """
        self.record = record
        self.stays_open = stays_open
        # Called when the loop has ended, or one of its calls.
        self.at_end: list[Callable[[], object]] = []
        # Called at the end of an epoch of fit, each with a function that writes its records.
        self.at_epoch: list[Callable[[Callable[[], None]], object]] = []
        self._sinks = sinks
        # During a call only: they keep the model alive.
        self._model: keras.Model | None = None
        self._log: CompileLog | None = None
        self._arguments: Mapping[str, Any] = {}
        self._feeds = FeedWatch()
        self._history: EpochHistory | None = None
        self._ended_epochs: list[EpochRecord] = []  # since the last sample
        self._written_epochs = 0
        self._counts: dict[Mode | None, ExecutionCounts] = {}
        self._current: ExecutionCounts | None = None
        self._mode: Mode | None = None
        self._last = 0.0  # begin of the last execution
        self._epoch = 0
        self._compilations = 0  # of the log that were looked at
        self._search_seconds = self._planning_seconds = 0.0  # likewise
        self._compile_seconds: dict[str, float] = {}  # by mode, since the last sample
        self._due = self._summary_due = 0.0
        self._outcome: Outcome = "finished"
        self._error = ""
        self.is_written = False

    @without_errors
    def begin_call(
        self, model: keras.Model | None, arguments: Mapping[str, Any], log: CompileLog
    ) -> None:
        """Begins a call: of the loop, or another one that the same record is about.

        Args:
            model: that runs; None for a function.
            arguments: of the call.
            log: of the compilations of the strategy.
        """
        now = time.perf_counter()
        self._model, self._arguments, self._log = model, arguments, log
        self._compilations, self._search_seconds = log.length, log.search_seconds
        self._planning_seconds = log.planning_seconds
        self._outcome, self._error = "finished", ""
        if model is not None and self.record.mode == Mode.TRAIN.value and "epochs" in arguments:
            self._history = EpochHistory(model, self.record.number, self._sinks.process)
            if ahead := log.ahead_seconds:  # `fit` has planned, for which the user has waited, too
                record, log.ahead_seconds = self.record, 0.0
                self.record = replace(
                    record,
                    began=record.began - ahead,
                    compile_seconds=record.compile_seconds + ahead,
                    planning_seconds=record.planning_seconds + ahead,
                )
        if not self.is_written:
            self.is_written = True
            self._due = now + pace.between_samples(now)
            self.write(now)

    def write(self, now: float | None = None) -> None:
        """Writes the record of the loop as it is."""
        now = time.perf_counter() if now is None else now
        self._summary_due = now + pace.between_summaries(now)
        self._sinks.add(self.record)

    @without_errors
    def begins(self, mode: Mode | None, epoch: int) -> None:
        """Notes the begin of an execution; of a function, if there is no mode."""
        now = time.perf_counter()
        current = self._current
        if current is not None:
            current.seconds += now - self._last
        self._last = now
        if now >= self._due:
            self._sample(now)
        elif not epoch and self._history is not None and mode is Mode.TRAIN:
            self._note_epochs(now)  # of a model that Keras's own loop runs
        if self._mode is not mode or self._current is None:
            self._mode = mode
            name = self.record.mode if mode is None else mode.value
            counts = ExecutionCounts(name, self._epoch, pace.seconds_since_1970(now))
            self._current = self._counts.setdefault(mode, counts)

    @without_errors
    def executed(
        self, steps: int, dispatch_seconds: float, update_seconds: Mapping[str, float]
    ) -> None:
        """Notes the steps of an execution, and the host's seconds in calls of compiled code.

        Args:
            steps: of the execution.
            dispatch_seconds: the host's, in calls of compiled code.
            update_seconds: what the time of its updates went to, where that is known.
        """
        if update_seconds:
            sums = dict(self.record.update_seconds)
            for name, seconds in update_seconds.items():
                sums[name] = sums.get(name, 0.0) + seconds
            self.record = replace(self.record, update_seconds=sums)
        current = self._current
        if current is not None:
            current.executions += 1
            current.steps += steps
            current.dispatch_seconds += dispatch_seconds

    @without_errors
    def begins_epoch(self, number: int) -> None:
        """Notes the begin of an epoch of fit; the one before has its logs by now."""
        now = time.perf_counter()
        self._note_epochs(now)
        self.record = replace(self.record, epochs=number)
        if self._model is not None:
            begin = self._arguments.get("initial_epoch") or 0
            self._epoch = first_epoch(self._model, begin) + number
        for function in self.at_epoch if number > 1 else ():
            function(lambda: self._sample(now))

    @without_errors
    def opens(self, feed: Infeed, mode: Mode) -> None:
        """Looks at an infeed from now on."""
        self._feeds.opens(feed, mode)

    @without_errors
    def closes(self, feed: Infeed) -> None:
        """Looks at an infeed for the last time."""
        self._feeds.closes(feed)

    def end(self, error: BaseException | None) -> None:
        """Ends the loop, or one of its calls."""
        self._end(error)
        self._model, self._arguments, self._log = None, {}, None
        for function in self.at_end:
            function()

    @without_errors
    def _end(self, error: BaseException | None) -> None:
        now = time.perf_counter()
        if self._current is not None:
            self._current.seconds += now - self._last
            self._current = None
        self._note_epochs(now)
        self._note_compilations(self._counts.values())
        if self._history is not None:  # of a model that Keras's own loop runs, nobody has counted
            epochs = max(self.record.epochs, self._history.count)
            self.record, self._history = replace(self.record, epochs=epochs), None
        if error is not None:
            is_interrupt = isinstance(error, KeyboardInterrupt)
            self._outcome = "interrupted" if is_interrupt else "failed"
            self._error = first_line(error)
        if not self.stays_open:
            self.close(now)
        elif now >= self._due:
            self._sample(now)
        self._last = now

    @without_errors
    def close(self, now: float | None = None) -> None:
        """Writes what is left, and the record of the loop as one that has ended."""
        ended = now or self._last
        self._sample(ended)
        self.record = replace(
            self.record,
            ended=max(pace.seconds_since_1970(ended), self.record.began),
            outcome=self._outcome,
            error=self._error,
        )
        self.write(ended)

    def _note_epochs(self, now: float) -> None:
        if self._history is not None:
            self._ended_epochs += self._history.ended(pace.seconds_since_1970(now))

    def _sample(self, now: float) -> None:
        """Writes everything since the last sample."""
        self._due = now + pace.between_samples(now)
        self._note_epochs(now)
        counts, self._counts = list(self._counts.values()), {}
        self._current = None
        feeds = self._feeds.samples(
            self.record.number, self._sinks.process, self._epoch, pace.seconds_since_1970(now)
        )
        self._note_compilations(counts)
        compiled, self._compile_seconds = self._compile_seconds, {}
        samples = [
            ExecutionSample(
                loop=self.record.number,
                process=self._sinks.process,
                compile_seconds=min(compiled.get(each.mode, 0.0), each.seconds),
                wait_seconds=sum(feed.wait_seconds for feed in feeds if feed.mode == each.mode),
                **asdict(each),
            )
            for each in counts
        ]
        self._sinks.add(*samples)
        self._sinks.add(*feeds)
        epochs, self._ended_epochs = self._ended_epochs, []
        if self._written_epochs > pace.EPOCHS:
            epochs = epochs[-1:]
        self._written_epochs += len(epochs)
        self._sinks.add(*epochs)
        self._add_up(samples)
        if now >= self._summary_due or (samples and not self.record.parameters):
            self.write(now)

    def _note_compilations(self, counts: Iterable[ExecutionCounts]) -> None:
        if self._log is None or self._log.length == self._compilations:
            return
        records = self._log.records[self._compilations :]
        self._compilations += len(records)
        current = self._mode.value if self._mode is not None else self.record.mode
        modes, seconds = [each.mode for each in counts], self._compile_seconds
        of_modes = dict(compile_seconds(of_loop(records, self.record), modes, current))
        of_modes[current] += self._log.search_seconds - self._search_seconds
        planning = self.record.planning_seconds + self._log.planning_seconds
        self.record = replace(self.record, planning_seconds=planning - self._planning_seconds)
        self._search_seconds = self._log.search_seconds
        self._planning_seconds = self._log.planning_seconds
        for mode, each in of_modes.items():
            seconds[mode] = seconds.get(mode, 0.0) + each

    def _add_up(self, samples: list[ExecutionSample]) -> None:
        record, model = self.record, self._model
        self.record = replace(
            record,
            executions=record.executions + sum(each.executions for each in samples),
            steps=record.steps + sum(each.steps for each in samples),
            compile_seconds=record.compile_seconds + sum(each.compile_seconds for each in samples),
            wait_seconds=record.wait_seconds + sum(each.wait_seconds for each in samples),
            parameters=record.parameters or (parameters_of(model) if model else 0),
        )


def first_line(error: BaseException) -> str:
    """Returns the class of an error and the first line of its text."""
    text = next((line for line in str(error).splitlines() if line.strip()), "").strip()
    name = type(error).__name__
    return (f"{name}: {text}" if text else name)[:_SHOWN]


def parameters_of(model: keras.Model) -> int:
    """Returns the number of elements of all weights; 0 if the model is not built."""
    return sum(math.prod(weight.shape) for weight in model.weights) if model.built else 0
