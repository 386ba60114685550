"""Makes the writers of the loops of one strategy; `millrace.run.fit.recorders.LoopRecorders`.

fit                    a writer of its own
predict, 1,000 times   beyond some hundred loops, one for all short ones of a model and a mode
train_on_batch         one for all calls of a model and a mode
"""

import itertools
import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from millrace.base.devices import device_name
from millrace.base.records.loops import LoopRecord
from millrace.programs.plan import Mode
from millrace.run.fit.setup import Setup
from millrace.run.fit.totals import Totals, next_loop
from millrace.run.recording import pace
from millrace.run.recording.loop_recorder import LoopWriter, parameters_of
from millrace.tools.recording.options import options_in_force
from millrace.tools.recording.run import RecordedRun

logger = logging.getLogger("millrace")


class StrategyRecorders:
    """Makes the writers of a strategy's loops."""

    def __init__(self, totals: Totals, run: RecordedRun | None):
        """Begins with no loop.

        Args:
            totals: of the strategy.
            run: of the strategy, if it has one.
        """
        self._totals, self._run = totals, run
        self._begun = itertools.count()  # numbers the loops of the strategy
        self._open: dict[tuple[str, str], LoopWriter] = {}  # by model and mode
        self._short: set[tuple[str, str]] = set()  # whose last loop was short

    def begin(
        self, setup: Setup, loop: int, mode: Mode, arguments: Mapping[str, Any]
    ) -> LoopWriter | None:
        """Returns the writer of a loop that begins; None if nothing is recorded."""
        message = "A loop of %r is not recorded."
        return self._tried(setup, message, lambda: self._begin(setup, loop, mode, arguments))

    def _tried(
        self, setup: Setup, message: str, make: Callable[[], LoopWriter]
    ) -> LoopWriter | None:
        if not self._totals.sinks:
            return None
        try:
            return make()
        except Exception:  # of any kind: training is worth more than its records
            if self._totals.notes.is_new(message):
                logger.warning(message, setup.model.name, exc_info=True)
            return None

    def _begin(
        self, setup: Setup, loop: int, mode: Mode, arguments: Mapping[str, Any]
    ) -> LoopWriter:
        key = setup.model.name, mode.value
        if next(self._begun) >= pace.MANY and key in self._short:
            writer = self._kept(key, setup, mode)
        else:
            record = self._record(setup, loop, mode, arguments)
            writer = LoopWriter(record, self._totals.sinks, stays_open=False)
        begin = time.perf_counter()

        def has_ended() -> None:
            seconds = time.perf_counter() - begin
            (self._short.add if pace.is_short(seconds) else self._short.discard)(key)
            _inner.loops -= 1
            if not _inner.loops and self._run is not None:
                self._run.loop_has_ended(arguments.get("verbose", 0))

        _inner.loops += 1
        writer.at_end = [has_ended]
        if self._run is not None and self._run.page is not None:
            writer.at_epoch = [self._run.page.epoch_has_ended]
        writer.begin_call(setup.model, arguments, self._totals.compile_log)
        return writer

    def on_batch(self, setup: Setup, mode: Mode) -> LoopWriter | None:
        """Returns the writer of `train_on_batch` and the like."""

        def begin() -> LoopWriter:
            writer = self._kept((setup.model.name, mode.value), setup, mode)
            writer.begin_call(setup.model, {}, self._totals.compile_log)
            return writer

        return self._tried(setup, "%r is not recorded.", begin)

    def _kept(self, key: tuple[str, str], setup: Setup, mode: Mode) -> LoopWriter:
        writer = self._open.get(key)
        if writer is None:
            record = self._record(setup, next_loop(), mode, {})
            writer = self._open[key] = LoopWriter(record, self._totals.sinks, stays_open=True)
            if self._run is not None:
                self._run.open_loops.append(writer)
        return writer

    def _record(
        self, setup: Setup, loop: int, mode: Mode, arguments: Mapping[str, Any]
    ) -> LoopRecord:
        assignment = setup.stages.assignment()
        return LoopRecord(
            number=loop,
            process=self._totals.sinks.process,
            model=setup.model.name,
            mode=mode.value,
            began=time.time(),
            options=options_in_force(setup, arguments),
            stages=1 if assignment is None else assignment.num_stages,
            replicas=setup.replicas,
            devices=tuple(map(device_name, setup.devices)),
            parameters=parameters_of(setup.model),
        )


class _Inner(threading.local):
    loops = 0  # that this thread is in: a callback of one model may run another


_inner = _Inner()
