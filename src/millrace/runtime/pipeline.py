"""Runs one execution of a pipelined model: the tasks of a schedule, one dispatch each.

for task in order:                  every device group's order, merged
    stage.forward(...) ...          JAX returns at once, so the device groups overlap
update.run(...)                     each stage where its weights live
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from statistics import median
from typing import Any, NamedTuple

import jax
import numpy as np

from millrace._compat.jax import is_non_finite_error, looks_for_non_finite
from millrace.compiling.stage_executables import StageExecutables
from millrace.errors import MillraceError, NonFiniteError, TaskError
from millrace.feeds.block import Segment
from millrace.plan import Mode, Plan
from millrace.programs.accumulate import scale_of, weight_of
from millrace.programs.stages import StageBuilder
from millrace.programs.state import State
from millrace.records.pipeline import PipelineStatistics
from millrace.runtime.buffers import Buffers
from millrace.runtime.part import Part
from millrace.runtime.stage_state import StageState
from millrace.runtime.stage_tasks import StageTasks
from millrace.runtime.stage_update import StageUpdate
from millrace.schedules.simulate import merged
from millrace.schedules.task import Pass, Schedule, Task
from millrace.schedules.text import grid

MAX_PENDING_UPDATES = 2  # dispatched and not finished: enough that the devices never wait
FORWARD_AHEAD = 2  # micro-batches per stage by which evaluation may be ahead of the devices


class _Shape(NamedTuple):
    """What runs micro-batches of one shape."""

    builder: StageBuilder
    stages: list[StageTasks]
    update: StageUpdate | None
    rows: int


class _MicroBatch(NamedTuple):
    leaves: Sequence[Any]  # of x, y and sample weights, in host memory
    shape: _Shape


class PipelineRunner:
    """Runs micro-batches with the executables of one mode of one model."""

    def __init__(
        self,
        executables: StageExecutables,
        plan: Plan,
        devices: Sequence[jax.Device],
        make_schedule: Callable[[int], Schedule],
    ):
        """Makes a runner.

        Args:
            executables: where compiled code comes from.
            plan: a plan of the mode; its batch is replaced by that of each block.
            devices: of each stage.
            make_schedule: returns the schedule of an update of so many micro-batches.
        """
        self._executables = executables
        self._plan = replace(plan, capacity=1, records=1)
        self._devices = tuple(devices)
        self._make_schedule = make_schedule
        self._schedules: dict[int, tuple[Schedule, tuple[Task, ...]]] = {}
        self._shapes: dict[Any, _Shape] = {}
        self._values: StageState | None = None
        self._probes: deque[Any] = deque()
        self._task_seconds: list[float] = []
        self._in_flight: tuple[int, ...] = ()
        self.dispatches = 0
        self.statistics = PipelineStatistics()
        # The newest state of a running execution; what is left of it if the execution fails.
        self.state: State | None = None

    def run(
        self, state: State, segments: Iterable[Segment], longest: int, chunk: int | None = None
    ) -> tuple[State, list[Part]]:
        """Runs one execution and does not wait for it.

        Args:
            state: consumed; its memory becomes that of the new state.
            segments: what to run, in order.
            longest: steps of a full execution; a pipeline has no program that depends on it.
            chunk: nor on this: each micro-batch has a result of its own.

        Returns:
            The new state, and a part for each micro-batch that has a result.
        """
        del longest, chunk
        self.state, self._values, self._task_seconds = state, None, []
        self._in_flight = (0,) * len(self._devices)
        try:
            parts, steps = self._run(state, segments)
        except BaseException:
            # Micro-batches of the update that failed have changed some of the state already.
            self.state = self._values.state() if self._values is not None else state
            raise
        if self._values is not None:
            state = self._values.state()
            if not parts:
                parts = [Part(self._logs(state), steps, 1)]
            self._count_tasks()
        self.state = self._values = None
        return state, parts

    def _run(self, state: State, segments: Iterable[Segment]) -> tuple[list[Part], int]:
        parts: list[Part] = []
        steps = 0
        trains = self._plan.mode is Mode.TRAIN
        micro_batches = self._micro_batches(state, segments)
        while window := list(islice(micro_batches, self._plan.accumulation.steps if trains else 1)):
            if self._values is None:
                self._values = self._place(state, window[0].shape)
            run = self._update if trains else self._forward
            parts += run(window, self._values)
            steps += len(window)
        return parts, steps

    def release(self) -> None:
        """Lets go of what a loop that has ended was waiting for."""
        self._probes.clear()

    def _place(self, state: State, shape: _Shape) -> StageState:
        owners = dict(shape.builder.split.owners)
        if shape.update is not None:
            owners.update(shape.builder.update.owners)
        mode, split = self._plan.mode, shape.builder.split
        return StageState(mode, state, split, owners, self._devices)

    def _micro_batches(self, state: State, segments: Iterable[Segment]) -> Iterator[_MicroBatch]:
        for segment in segments:
            shape = self._shape(segment.block.spec, state)
            leaves = jax.tree.leaves(segment.block.batches)
            for step in range(segment.start, segment.start + segment.count):
                yield _MicroBatch([leaf[step, ...] for leaf in leaves], shape)

    def _shape(self, spec: Any, state: State) -> _Shape:
        key = (spec, looks_for_non_finite())  # which decides what may be donated
        shape = self._shapes.get(key)
        if shape is None:
            shape = self._shapes[key] = self._make_shape(spec, state)
        return shape

    def _make_shape(self, spec: Any, state: State) -> _Shape:
        plan = replace(self._plan, batch=spec)
        builder = self._executables.builder(plan, state)

        def find(name: str, stage: int, make: Any) -> Any:
            device = self._devices[stage]
            return self._executables.find(builder, plan, device, name, stage, make)

        stages = [
            StageTasks(builder, plan.mode, index, self._devices, find)
            for index in range(len(self._devices))
        ]
        trains = plan.mode is Mode.TRAIN
        update = StageUpdate(builder, self._devices, find) if trains else None
        return _Shape(builder, stages, update, spec.rows)

    def _update(self, window: list[_MicroBatch], state: StageState) -> list[Part]:
        """Runs one update, and returns a part for each micro-batch if they have results."""
        first = window[0].shape
        reduction = self._plan.accumulation.reduction
        weights = [weight_of(reduction, each.shape.rows, first.rows) for each in window]
        coefficients = [np.float32(weight) for weight in weights]
        schedule, order = self._schedule(len(window))
        buffers = Buffers()
        sums = [stage.zeros() for stage in first.stages]
        results: list[dict[int, Any]] = [{} for _ in window]
        for task in order:
            number = task.micro_batch
            micro_batch = window[number]
            stage = micro_batch.shape.stages[task.stage]
            begin = time.perf_counter()
            try:
                if task.kind is Pass.FORWARD:
                    results[number] |= stage.forward(number, micro_batch.leaves, state, buffers)
                elif task.kind is Pass.BACKWARD:
                    stage.backward(number, state, buffers, sums, coefficients[number])
                elif task.kind is Pass.BACKWARD_INPUT:
                    stage.backward_input(number, state, buffers)
                else:
                    stage.backward_weight(number, state, buffers, sums, coefficients[number])
            except Exception as error:
                raise _task_error(error, task, schedule) from error
            self._task_seconds.append(time.perf_counter() - begin)
        self._in_flight = tuple(
            max(peak, buffers.peaks.get(stage, 0)) for stage, peak in enumerate(self._in_flight)
        )
        scale = np.float32(scale_of(reduction, sum(weights)))
        if first.update is not None:
            self.dispatches += len(sums) + first.update.dispatches
            self._wait(first.update.run(state, sums, scale), MAX_PENDING_UPDATES)
        return [self._part(r, each) for r, each in zip(results, window, strict=True) if r]

    def _forward(self, window: list[_MicroBatch], state: StageState) -> list[Part]:
        """Runs one micro-batch through all stages; the devices overlap without being told."""
        (micro_batch,), buffers = window, Buffers()
        results: dict[int, Any] = {}
        for stage in micro_batch.shape.stages:
            begin = time.perf_counter()
            results |= stage.forward(0, micro_batch.leaves, state, buffers)
            self._task_seconds.append(time.perf_counter() - begin)
        self._wait(buffers.newest, FORWARD_AHEAD * len(self._devices))
        return [self._part(results, micro_batch)] if results else []

    def _part(self, results: dict[int, Any], micro_batch: _MicroBatch) -> Part:
        tree = jax.tree.structure(micro_batch.shape.builder.split.result)
        return Part(jax.tree.unflatten(tree, [results[leaf] for leaf in sorted(results)]), 1, 1)

    def _logs(self, state: State) -> Any:
        """Returns the logs of the last step, where they follow from the metrics."""
        (spec, _), shape = next(iter(self._shapes.items()))
        last = len(self._devices) - 1
        plan, device = replace(self._plan, batch=spec), self._devices[last]
        run = self._executables.find(
            shape.builder, plan, device, "logs", last, lambda: shape.builder.logs(last)
        )
        return run(jax.device_put(state[-1], device))

    def _schedule(self, num_micro_batches: int) -> tuple[Schedule, tuple[Task, ...]]:
        if num_micro_batches not in self._schedules:
            schedule = self._make_schedule(num_micro_batches)
            self._schedules[num_micro_batches] = schedule, merged(schedule)
        return self._schedules[num_micro_batches]

    def _wait(self, probe: Any, pending: int) -> None:
        """Waits where too much is dispatched. JAX would queue tasks as fast as they are called."""
        self._probes.append(probe)
        while len(self._probes) > pending:
            jax.block_until_ready(self._probes.popleft())

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
        )


def _task_error(error: Exception, task: Task, schedule: Schedule) -> MillraceError:
    where = f"the {task.kind.name.lower()} pass of stage {task.stage} on micro-batch"
    where = f"{where} {task.micro_batch}"
    drawing = grid(schedule, marked=task)
    if is_non_finite_error(error):
        return NonFiniteError(
            f"A {error.args[-1]} came out of task {task}: {where}. jax_debug_nans or "
            "jax_debug_infs told JAX to look for one. The model has the weights from before this "
            "update. Look at the layers of that stage and at the data of that micro-batch, or use "
            f"keras.callbacks.TerminateOnNaN() to only stop.\n{drawing}"
        )
    return TaskError(f"Task {task} failed: {where}. {type(error).__name__}: {error}\n{drawing}")
