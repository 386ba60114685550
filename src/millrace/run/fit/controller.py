"""The controller: all state that a strategy keeps for one model.

setup         choices of the user, frozen       setup.py
feeds         blocks, open epoch iterators      feeds.py
watchers      listeners to its tensors          watchers.py
functions     called by Keras's loops           loop_functions.py
attributes    given to the model                attributes.py
totals        the counters of the strategy      totals.py
"""

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import keras

from millrace._compat.keras_loops import sync_state
from millrace.base.activities import Activities
from millrace.base.interrupts import held_back
from millrace.base.options import Options, TapRequest
from millrace.errors import ModelError
from millrace.programs.plan import BatchSpec, Mode
from millrace.programs.taps.delivery import TapListener
from millrace.run.fit.attributes import Attributes
from millrace.run.fit.callbacks import flat_callbacks
from millrace.run.fit.checkpoint_places import LoopCheckpoints
from millrace.run.fit.feeds import Feeds
from millrace.run.fit.model_functions import LoopFunctions
from millrace.run.fit.multi_process import Agreement
from millrace.run.fit.offloading import bring_back
from millrace.run.fit.pipelined_model import StageAssignment
from millrace.run.fit.setup import Rules, Setup
from millrace.run.fit.totals import Totals, next_loop
from millrace.run.fit.uncompiled import check_watched
from millrace.run.fit.watchers import Watchers
from millrace.run.recording.loop_recorder import LoopWriter

NO_ARGUMENTS: Mapping[str, Any] = MappingProxyType({})
ATTRIBUTE = "_millrace"  # of a model: its controller


@dataclass(frozen=True, slots=True)
class PlannedOptions:
    """Options that a fit has planned by itself."""

    before: Options
    after: Options
    batch: BatchSpec  # for which they were planned


class Controller:
    """The attribute `_millrace` of an attached model."""

    def __init__(
        self,
        setup: Setup,
        totals: Totals,
        attributes: Attributes | None = None,
        watchers: Watchers | None = None,
    ):
        # A cycle, as Keras models have many: a bound method must keep its model alive.
        self.model: keras.Model = setup.model
        self.setup = setup
        self.totals = totals
        self.attributes = attributes or Attributes(setup.model)
        self.watchers = watchers or Watchers()
        self.feeds = Feeds()
        self.agreement = Agreement()  # of all processes on what they run
        self.functions = LoopFunctions(setup.model, totals.number)
        self.planned: PlannedOptions | None = None  # by the last fit that planned
        self.checkpoints: LoopCheckpoints | None = None  # of the running fit
        self.arguments: Mapping[str, Any] = NO_ARGUMENTS  # of the running fit
        self.gathers_outputs = True  # in the newest predict
        self.loop = 0  # number of the outermost loop that runs, or ran last
        self._running = 0  # nesting of fit, evaluate and predict
        self._thread: threading.Thread | None = None  # in which they run
        self._lock = threading.Lock()
        self._activities: Activities | None = None

    def callbacks(self) -> list[keras.callbacks.Callback]:
        """Returns the callbacks of the running loop, with the history that Keras adds."""
        given = flat_callbacks(self.arguments.get("callbacks"))
        history = getattr(self.model, "history", None)
        if history is None or any(each is history for each in given):
            return given
        return [*given, history]

    def logs_of_epoch(self, logs: object, from_metrics: Callable[[], object]) -> object:
        """Returns the logs that fit and evaluate report when an epoch has ended.

        Keras computes them from the metrics once more, one operation after the other: 0.1 ms for
        each metric. The last step has returned the same, if its metrics have not changed since.

        Args:
            logs: of the last execution.
            from_metrics: computes those that Keras reports.
        """
        if not isinstance(logs, dict):
            return from_metrics()
        function = self.functions.running
        is_same = function is not None and function.ended_with(logs)
        return logs if is_same or self.setup.reports_each_replica else from_metrics()

    def put_options(self, options: Options, keep_functions: bool = False) -> None:
        """Puts other options in force, from the next fit, evaluate or predict on."""
        if options.feed != self.setup.options.feed:
            self.feeds.forget_capacities()
        self.setup = replace(self.setup, options=options)
        if not keep_functions:
            self.functions.clear()

    def put_rules(self, rules: Rules) -> None:
        """Puts other rules in force, from the next fit, evaluate or predict on."""
        self.setup = replace(self.setup, rules=rules)

    def variant(self, options: Options, stages: StageAssignment | None = None) -> "Controller":
        """Returns another controller of the model, with other options; the model keeps its own.

        Args:
            options: of the other controller.
            stages: likewise; None for those of this one.
        """
        setup = replace(self.setup, options=options, stages=stages or self.setup.stages)
        return Controller(setup, Totals(memory=self.totals.memory), self.attributes, self.watchers)

    @property
    def activities(self) -> Activities | None:
        """What the host and its threads did lately; None if the run writes no records."""
        if self.totals.records is None:
            return None
        if self._activities is None:
            self._activities = self.watchers.outfeed.activities = Activities()
        return self._activities

    def watch(self, listener: TapListener, taps: TapRequest) -> None:
        """Sends statistics of tensors to a listener, from the next execution on.

        Ends with `watchers.unwatch`, or with the running fit.

        Raises:
            ModelError: if the model is not compiled.
            OptionError: if it watches already.
        """
        check_watched(self.setup, taps)
        self.watchers.watch(listener, taps, until_end=self.is_running)

    @property
    def is_running(self) -> bool:
        """Whether fit, evaluate or predict is going on."""
        return self._running > 0

    @contextmanager
    def in_one_thread(self) -> Iterator[None]:
        """Surrounds what needs the values of the variables for itself.

        Raises:
            ModelError: while the model's fit, evaluate or predict runs in another thread.
        """
        current = threading.current_thread()
        with self._lock:
            before = self._thread
            if before not in (None, current):
                raise ModelError(
                    f"{self.model.name!r} is in a fit, evaluate or predict in the thread "
                    f"{before.name!r}, and cannot run in {current.name!r} at the same time: a "
                    "running loop has the values of its variables. Wait until that call has "
                    "returned, or train a copy: keras.models.clone_model(model)."
                )
            self._thread = current
        try:
            yield
        finally:
            self._thread = before

    @contextmanager
    def running(
        self, mode: Mode | None = None, arguments: Mapping[str, Any] = NO_ARGUMENTS
    ) -> Iterator[None]:
        """Surrounds fit, evaluate and predict, and ends their threads however they end.

        After an interrupt nothing waits for the batch that a slow data set is making, and the
        variables have their newest values.

        Raises:
            ModelError: if the model runs in another thread.

        Args:
            mode: of the loop; None for one that runs nothing, of which no records are left.
            arguments: of the call, by name.
        """
        if not self._running:
            self.arguments = arguments
        with (
            self.in_one_thread(),
            held_back(),
            self._recorded(mode, arguments),
            self._threads_ended(),
        ):
            yield

    @contextmanager
    def _recorded(self, mode: Mode | None, arguments: Mapping[str, Any]) -> Iterator[None]:
        """Writes records of the outermost loop, if the strategy has somewhere to put them."""
        recorders = self.totals.recorders
        if self._running:
            yield
            return
        self.loop = next_loop()
        if mode is None or recorders is None:
            yield
            return
        with self._writing(recorders.begin(self.setup, self.loop, mode, arguments)):
            yield

    @contextmanager
    def on_batch(self, mode: Mode) -> Iterator[None]:
        """Surrounds `train_on_batch` and the like, which may come between loops or within one."""
        recorders = self.totals.recorders
        if recorders is None or self.functions.recorder is not None:
            yield
            return
        with self._writing(recorders.on_batch(self.setup, mode)):
            yield

    @contextmanager
    def _writing(self, recorder: LoopWriter | None) -> Iterator[None]:
        """Gives the functions a recorder, and ends it, or that of a `Report` which began since."""
        self.functions.recorder, failure = recorder, None
        try:
            yield
        except BaseException as error:
            failure = error
            raise
        finally:
            recorder, self.functions.recorder = self.functions.recorder, None
            if recorder is not None:
                recorder.end(failure)

    @contextmanager
    def _threads_ended(self) -> Iterator[None]:
        self._running += 1
        is_interrupted = False
        failure: BaseException | None = None
        try:
            with contextlib.nullcontext() if self._running > 1 else self.totals.timed():
                yield
        except BaseException as error:
            failure = error
            is_interrupted = isinstance(error, KeyboardInterrupt | SystemExit)
            if isinstance(error, Exception):
                self.feeds.add_note(error)
            if self._running == 1 and not self.setup.spans_processes:
                sync_state(self.model)  # which evaluate and predict do not do
            raise
        finally:
            self._running -= 1
            if not self._running:
                try:
                    self._end(is_interrupted)
                finally:
                    checkpoints, self.checkpoints = self.checkpoints, None
                    if checkpoints is not None:
                        checkpoints.close(failure)

    def _end(self, is_interrupted: bool) -> None:
        self.arguments = NO_ARGUMENTS
        self.feeds.close(wait=not is_interrupted)
        self.functions.release()
        self.totals.compile_log.close()
        if self.functions.offload:
            bring_back(self.model.variables)  # which the optimizer's do not belong to
        self.watchers.close()


def controller_of(model: object) -> Controller | None:
    """Returns the controller of an attached model, None for any other."""
    return getattr(model, "__dict__", {}).get(ATTRIBUTE)
