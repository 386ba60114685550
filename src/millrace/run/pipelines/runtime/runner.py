"""Executions of a pipelined model: the tasks of a schedule, one dispatch each.

for task in order:                  every device group's order, merged
    stage.forward(...) ...          JAX returns at once, so the device groups overlap
update.run(...)                     each stage where its weights live
"""

import time
from collections import deque
from collections.abc import Iterable, Sequence
from statistics import median

import jax
import numpy as np

from millrace.base.interrupts import raise_if_interrupted, uninterrupted
from millrace.base.pytrees import ArrayTree
from millrace.base.records.statistics import PipelineStatistics
from millrace.errors import TapError
from millrace.programs.feeds.block import BlockSlice
from millrace.programs.plan import BatchSpec, Division, Mode
from millrace.programs.steps.state import State
from millrace.programs.taps.entries import CallResult
from millrace.run.compiled_loop.protocol import ExecutionSteps, Halted, TapSink
from millrace.run.pipelines.programs.split import Arrays
from millrace.run.pipelines.runtime.activation_offload import ActivationOffload
from millrace.run.pipelines.runtime.buffers import Buffers
from millrace.run.pipelines.runtime.kept_state import KeptState
from millrace.run.pipelines.runtime.links import leave
from millrace.run.pipelines.runtime.measured import MeasuredPipeline
from millrace.run.pipelines.runtime.micro_batches import (
    MicroBatch,
    Shape,
    micro_batches,
    next_update,
    steps_of,
)
from millrace.run.pipelines.runtime.shapes import Shapes
from millrace.run.pipelines.runtime.stage_state import StageState
from millrace.run.pipelines.runtime.taps import TapCollector
from millrace.run.pipelines.runtime.tasks import task_error
from millrace.run.pipelines.runtime.update_clock import UpdateClock
from millrace.run.pipelines.runtime.update_tasks import UpdateTasks
from millrace.run.schedules.task import Pass
from millrace.run.timing.tracer import Tracer

MAX_PENDING_UPDATES = 2  # dispatched and not finished: enough that the devices never wait
# Where stages are in several processes, an update is finished before the next one is dispatched:
# with two more waiting, two pinned processes took 165 ms for an update, and 117 ms without.
FORWARD_AHEAD = 2  # micro-batches per stage by which evaluation may be ahead of the devices


class PipelineRunner:
    """Runs the executions of one mode of one pipelined model."""

    def __init__(self, shapes: Shapes, tap_sink: TapSink):
        """Makes a runner.

        Args:
            shapes: the executables for each shape of micro-batches.
            tap_sink: takes tapped values, while an execution runs.
        """
        plan, executables = shapes.plan, shapes.executables
        self._shapes, self._plan, self._executables = shapes, plan, executables
        self._groups = executables.groups
        self._last = len(self._groups) - 1  # stage
        self._replicas = plan.replicas
        self._spans_processes = any(not group.is_local for group in self._groups)
        # Of a pipeline over processes: what the time of its updates goes to in this one.
        self._clock: UpdateClock | None = None
        self._values: StageState | None = None
        self._kept = KeptState(self._groups)
        # Separate from the results of `run`: micro-batches without a result have taps, too.
        self._taps = TapCollector(plan, self._groups, tap_sink)
        self._probes: deque[ArrayTree] = deque()
        self._measured = MeasuredPipeline(self._groups, executables.orders.name)
        self._task_seconds: list[float] = []
        self._in_flight: tuple[int, ...] = ()
        self.dispatches = 0
        self.is_timed = True  # every task is, always
        self.tracer: Tracer | None = None
        self.statistics = PipelineStatistics()
        # The newest state of a running execution; the one that stays if the execution fails.
        self.state: State | None = None
        # Steps of the last execution that its state has; None if that is within an update.
        self.steps_done: int | None = 0

    def run(self, state: State, execution: ExecutionSteps) -> tuple[State, list[CallResult]]:
        """Runs one execution and does not wait for it; see `Runner.run`.

        Each micro-batch has its own result, so only the slices of the execution matter.
        """
        self.state, self._values, self._task_seconds = state, None, []
        self._taps.forget()
        self._measured.tracer = self.tracer
        self._in_flight = (0,) * len(self._groups)
        try:
            results, steps = self._run(state, execution.slices)
        except BaseException as error:
            # Micro-batches of the failed update have already changed some of the state.
            self.state = self._values.state() if self._values is not None else state
            self._kept.release()
            self._measured.fail()
            if self._spans_processes and isinstance(error, Exception):
                self._leave(error)
            raise
        if self._values is not None:
            if self._plan.mode is not Mode.TRAIN:
                self._reduce_replicas(self._shapes.first(), [[]] * len(self._groups), steps)
            if not results and self._plan.mode is not Mode.PREDICT:
                results = self._received([CallResult(self._logs(self._values), steps, 1)])
            state = self._values.state()
            self._kept.keep(state, self._values)
            self._taps.end(state, self._shapes.first())
            self._count_tasks()
        self.state = self._values = None
        return state, results

    def _run(self, state: State, slices: Iterable[BlockSlice]) -> tuple[list[CallResult], int]:
        results: list[CallResult] = []
        steps = 0
        self.steps_done = 0
        trains = self._plan.mode is Mode.TRAIN
        size = self._plan.update_steps if trains else 1
        remaining = micro_batches(
            slices, lambda spec: self._shapes.of(spec, state), self._division, self._replicas
        )
        while True:
            begin = time.perf_counter()
            batches = next_update(remaining, size)
            if not batches:
                break
            if steps:  # after the last update, callbacks come first
                raise_if_interrupted()
            if self._clock is not None:
                self._clock.begin(begin)
            if self._values is None:
                self._values = self._kept.enter(state, batches[0].shape)
                self._taps.begin(state, batches[0].shape)
                self._values.free_moved()
            run = self._update if trains else self._forward
            self.steps_done = None
            results += run(batches, self._values)
            self.steps_done = steps = steps + steps_of(batches)
            if self._taps.halted is not None:
                break
        return self._received(results), steps

    def _division(self, spec: BatchSpec) -> Division:
        division = self._shapes.division(spec)
        if division.parts > 1 and self._plan.tapped:
            raise TapError(
                f"micro_batch={self._plan.accumulation.micro_batch} makes several micro-batches of "
                "a batch, and a callback, an outfeed layer or the optimizer takes values of each. "
                "Set micro_batch='whole' in set_gradient_accumulation_options(), and give fit a "
                "smaller batch_size with a larger gradient_accumulation_steps_per_replica in "
                "set_pipelining_options()."
            )
        return division

    def _received(self, results: list[CallResult]) -> list[CallResult]:
        """Waits for what other processes send of some results: an error of theirs ends this run."""
        if self._spans_processes:
            jax.block_until_ready([each.result for each in results])
        return results

    def _leave(self, error: Exception) -> None:
        """Lets no process wait for this one after an error, except for one of the data.

        That one is the same in all processes, and comes between two updates.
        """
        if self.steps_done is None or isinstance(error, jax.errors.JaxRuntimeError):
            leave(error)

    @property
    def dispatch_seconds(self) -> float:
        """The host's seconds in tasks so far."""
        return self.statistics.dispatch_seconds

    @property
    def halted(self) -> Halted | None:
        """The update before which the last execution ended, if one was not applied."""
        return self._taps.halted

    def dry_run(self, single_steps: bool | None = None) -> Shapes:
        """Returns the dry run of this runner; executions of any length run the same tasks."""
        del single_steps
        return self._shapes

    def extend_records(self, steps: int) -> None:
        """Does nothing: each micro-batch has its own result."""

    def gather(self, role: str, values: Iterable[jax.Array]) -> Arrays:
        """Returns values of the state as variables hold them; all processes call it together."""
        return self._kept.gather(role, values)

    def metric_parts(self) -> list[jax.Array]:
        """Returns the metrics of each replica; none of them where stages are in other processes."""
        return [] if self._spans_processes else self._kept.metric_parts()

    def resume_metric_parts(self, parts: Sequence[np.ndarray]) -> None:
        """Gives the next execution metrics of each replica, as `metric_parts` returns them."""
        self._kept.resume_metric_parts(parts)

    def release(self) -> None:
        """Forgets the arrays and the state of a loop that has ended."""
        self._measured.close()
        self._probes.clear()
        self._kept.release()
        self._taps.forget()
        self.state = self._values = None  # of an execution that has failed

    def _update(self, batches: list[MicroBatch], state: StageState) -> list[CallResult]:
        """Runs one update, and returns a call result for each micro-batch that has one."""
        first = batches[0].shape
        schedule, order = self._executables.orders.of(len(batches))
        measured = self._measured
        measurement = measured.update(schedule, self._probes)
        tasks = UpdateTasks(self._plan, batches, state)
        buffers, sums = tasks.buffers, tasks.buffers.sums
        buffers.measurement = measurement
        offload = ActivationOffload(schedule, buffers) if self._plan.offload.activations else None
        call_results: list[CallResult] = []
        restore = self._taps.before(state)
        for task in order:
            begin = time.perf_counter()
            try:
                if offload is not None:
                    offload.before(task)
                with uninterrupted():
                    tasks.run(task)
                if measurement is not None:
                    measured.add(task, begin)
                number = task.micro_batch
                is_last = task.kind is Pass.FORWARD and task.stage == self._last
                if is_last and batches[number].ends:
                    call_results += self._call_results(
                        tasks.results[number], batches[number], state
                    )
                if offload is not None:
                    offload.after(task)
            except Exception as error:
                raise task_error(error, task, schedule) from error
            self._task_seconds.append(time.perf_counter() - begin)
        self._in_flight = tuple(
            max(peak, buffers.peaks.get(stage, 0)) for stage, peak in enumerate(self._in_flight)
        )
        if self._spans_processes:
            # If another process has failed, these are errors, and must not become weights.
            self._wait(sums, 0)
        self._reduce_replicas(first, sums, steps_of(batches))
        if first.update is not None:
            self.dispatches += len(sums) + first.update.dispatches
            pending = 0 if self._spans_processes else MAX_PENDING_UPDATES
            begin = time.perf_counter()
            with uninterrupted():
                probes = first.update.run(state, sums, tasks.scale)
            measured.end_update(probes, begin)
            self._wait(probes, pending)
        if self._clock is not None:
            self._clock.end()
        elif self._spans_processes:  # from the second update on: the first one compiles
            self._clock = UpdateClock()
        if self._taps.add(batches, buffers) and restore is not None:
            restore()
        return call_results

    def _forward(self, batches: list[MicroBatch], state: StageState) -> list[CallResult]:
        """Runs one micro-batch through all stages; devices overlap, since calls do not wait."""
        (micro_batch,), buffers = batches, Buffers()
        buffers.measurement = measurement = self._measured.forward()
        steps_argument = micro_batch.steps_argument(self._replicas)
        results: dict[int, jax.Array] = {}
        for index, stage in enumerate(micro_batch.shape.stages):
            begin = time.perf_counter()
            results |= stage.forward(0, micro_batch.leaves, state, buffers, *steps_argument)
            if measurement is not None:
                self._measured.add_forward(index, begin)
            self._task_seconds.append(time.perf_counter() - begin)
        self._measured.end_forward()
        self._wait(buffers.newest, FORWARD_AHEAD * len(self._groups))
        self._taps.add(batches, buffers)
        return self._call_results(results, micro_batch, state)

    def _reduce_replicas(self, shape: Shape, sums: list[Arrays], steps: int) -> None:
        """Adds up the results of `steps` steps over replicas."""
        if self._replicas > 1 and self._values is not None:
            for stage in shape.stages:
                stage.reduce_replicas(sums, self._values, np.array([0, steps], np.int32))

    def _call_results(
        self, results: dict[int, jax.Array], micro_batch: MicroBatch, state: StageState
    ) -> list[CallResult]:
        """Returns the call result of a micro-batch, if it has one."""
        tree = jax.tree.structure(micro_batch.shape.builder.stages.split.result)
        if results:
            result = jax.tree.unflatten(tree, [results[leaf] for leaf in sorted(results)])
        elif self._plan.step_logs and self._plan.mode is not Mode.PREDICT:
            result = self._logs(state)
        else:
            return []
        return [CallResult(result, micro_batch.steps, self._replicas, micro_batch.first)]

    def _logs(self, state: StageState) -> ArrayTree:
        """Returns the logs of the last step, computed from the metrics."""
        builder, last, logs = self._shapes.first().builder, self._last, None
        if self._groups[last].local:
            run = self._executables.find(builder, "logs", last)
            logs = run(*state.metrics())
        return self._kept.share_result(logs, last, lambda: builder.program("logs", last))

    def _wait(self, probe: ArrayTree, pending: int) -> None:
        """Waits until at most `pending` probes are unfinished: JAX would queue any number."""
        self._probes.append(probe)
        if len(self._probes) > pending:
            self._measured.begin_host("wait for devices", time.perf_counter())
            while len(self._probes) > pending:
                jax.block_until_ready(self._probes.popleft())
            self._measured.end_host()

    def _count_tasks(self) -> None:
        seconds, before = self._task_seconds, self.statistics
        self.dispatches += len(seconds)
        self.statistics = PipelineStatistics(
            executions=before.executions + 1,
            tasks=before.tasks + len(seconds),
            dispatch_seconds=before.dispatch_seconds + sum(seconds),
            last_tasks=len(seconds),
            last_task_seconds=median(seconds),
            last_in_flight=self._in_flight,
            seconds=None if self._clock is None else self._clock.seconds,
        )
