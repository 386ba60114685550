"""Records of the executions of one function of a model, where a run keeps records.

times         LoopWriter               run/recording/loop_recorder.py
tasks         Tracer                   run/timing/tracer.py       chosen updates
operations    ExecutionTracer          run/fit/totals.py          chosen executions, if asked for
"""

from collections.abc import Mapping

from millrace.programs.plan import Mode
from millrace.run.compiled_loop.protocol import Runner
from millrace.run.fit.controller import Controller
from millrace.run.fit.data_position import DataPosition
from millrace.run.timing.tracer import Tracer, TraceSubject


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
        self._dispatch_seconds = 0.0  # of the runner, before the execution
        self._update_seconds: Mapping[str, float] = {}  # likewise

    def begin(self, runner: Runner, steps: int, state: object) -> None:
        """Begins an execution; `end` follows, however it ends.

        Args:
            runner: of the execution.
            steps: of a full execution.
            state: the values that it begins with.
        """
        controller = self._controller
        runner.tracer = self._enter_trace()
        recorder, operations = controller.functions.recorder, controller.totals.operation_trace
        if recorder is not None:
            runner.is_timed, self._dispatch_seconds = True, runner.dispatch_seconds
            self._update_seconds = _update_seconds(runner)
            recorder.begins(self._mode, self._position.epoch)
        if operations is not None:
            operations.begin(controller.model.name, self._mode.value, steps, state)

    def end(self, runner: Runner, steps: int, results: object | None) -> None:
        """Ends an execution that has been dispatched; without results if it has failed."""
        controller = self._controller
        recorder, operations = controller.functions.recorder, controller.totals.operation_trace
        if operations is not None:
            operations.end(controller.model.name, self._mode.value, steps, results)
        if recorder is not None and results is not None:
            seconds = runner.dispatch_seconds - self._dispatch_seconds
            before = self._update_seconds
            parts = {k: v - before.get(k, 0.0) for k, v in _update_seconds(runner).items()}
            recorder.executed(self._position.steps, seconds, parts)

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


def _update_seconds(runner: Runner) -> Mapping[str, float]:
    """Returns what the time of a runner's updates went to so far; nothing if it is not known."""
    statistics = runner.statistics
    if statistics is None or statistics.seconds is None:
        return {}
    return statistics.seconds.parts
