"""What is written about the executions of one function of a model, where a run keeps records.

times         LoopRecorder             fit/recorders.py
tasks         Tracer                   timing/tracer.py       chosen updates
operations    ExecutionTracer          fit/totals.py          chosen executions, if asked for
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from millrace.compiled_loop.protocol import Runner
from millrace.fit.controller import Controller
from millrace.fit.data_position import DataPosition
from millrace.plan import Mode
from millrace.timing.tracer import Tracer, TraceSubject

ResultObserver = Callable[[object], object]


class ExecutionRecords:
    """Surrounds the executions of one function of a model."""

    def __init__(self, controller: Controller, mode: Mode, position: DataPosition):
        """Begins with nothing.

        Args:
            controller: of the model.
            mode: of the function.
            position: of the function in its data.
        """
        self._controller, self._mode, self._position = controller, mode, position
        self._tracer: Tracer | None = None

    def around(
        self, runner: Runner, steps: int, state: object
    ) -> AbstractContextManager[ResultObserver]:
        """Surrounds an execution; the function that it yields is called with its results.

        Args:
            runner: of the execution.
            steps: of a full execution.
            state: the values that it begins with.
        """
        runner.tracer = self._enter_trace()
        if self._controller.functions.recorder is None and runner.tracer is None:
            return nullcontext(_ignore)
        return self._recorded(runner, steps, state)

    @contextmanager
    def _recorded(self, runner: Runner, steps: int, state: object) -> Iterator[ResultObserver]:
        totals, recorder = self._controller.totals, self._controller.functions.recorder
        name, mode = self._controller.model.name, self._mode
        dispatched = 0.0
        if recorder is not None:
            runner.is_timed, dispatched = True, runner.dispatch_seconds
            recorder.begins(mode, self._position.epoch)
        operations, results = totals.operation_trace, list[object]()
        if operations is not None:
            operations.begin(name, mode.value, steps, state)
        try:
            yield results.append
        finally:
            if operations is not None:
                operations.end(name, mode.value, steps, results[0] if results else None)
        if recorder is not None:
            recorder.executed(self._position.steps, runner.dispatch_seconds - dispatched)

    def close(self) -> None:
        """Ends the threads that measure, after all that they wait for."""
        if self._tracer is not None:
            self._tracer.close()

    def _enter_trace(self) -> Tracer | None:
        """Returns what chooses the updates that leave a trace; None without records."""
        controller = self._controller
        records, activities = controller.totals.records, controller.activities
        if records is None or activities is None:
            return None
        if self._tracer is None:
            log = controller.totals.compile_log
            self._tracer = Tracer(
                TraceSubject(
                    controller.model.name,
                    self._mode.value,
                    records.process,
                    records.add,
                    activities,
                    controller.totals.trace_budget,
                    lambda: len(log.executables),
                )
            )
        self._tracer.enter(controller.loop, self._position.epoch)
        return self._tracer


def _ignore(results: object) -> None:
    pass
