"""The tasks of one stage: each takes its inputs from the buffers and leaves its results there."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from millrace._compat.jax_arrays import is_non_finite_error
from millrace.base.devices import DeviceGroup
from millrace.compilation.executables.executable import Executable
from millrace.errors import MillraceError, NonFiniteError, TaskError
from millrace.programs.plan import Mode
from millrace.run.pipelines.programs.builder import StageBuilder
from millrace.run.pipelines.programs.split import Arrays
from millrace.run.pipelines.runtime.buffers import Buffers
from millrace.run.pipelines.runtime.stage_state import StageState
from millrace.run.pipelines.runtime.transfer import Sent, ToAll, copies_to, routes
from millrace.run.schedules.task import Schedule, Task
from millrace.run.schedules.text import grid
from millrace.run.timing.marker import markers


def task_error(error: Exception, task: Task, schedule: Schedule) -> MillraceError:
    """Returns an error that names the task and shows it in its schedule."""
    where = f"the {task.kind.name.lower()} pass of stage {task.stage} on micro-batch"
    where = f"{where} {task.micro_batch}"
    drawing = grid(schedule, marked=task)
    if is_non_finite_error(error):
        return NonFiniteError(
            f"A {error.args[-1]} came out of task {task}: {where}. jax_debug_nans or "
            "jax_debug_infs told JAX to look for one. The model has the weights from before this "
            "update. Look at the layers of that stage and at the data of that micro-batch, or use "
            f"millrace.callbacks.NaNWatch() with both of these off.\n{drawing}"
        )
    return TaskError(f"Task {task} failed: {where}. {type(error).__name__}: {error}\n{drawing}")


# By the name of a program and its stage; keeps what it has found.
FindExecutable = Callable[[str, int], Executable]


class StageTasks:
    """Runs the tasks of one stage on micro-batches of one shape.

    With replicas each task takes one more argument: the replicas that have a batch. In a process
    that has no device of the stage, a task only receives values for the stages of this process.

    Calls return before the device has computed anything, so a task costs the time of its dispatch:
    everything that can be looked up beforehand is looked up once, here.
    """

    def __init__(
        self,
        builder: StageBuilder,
        mode: Mode,
        index: int,
        groups: Sequence[DeviceGroup],
        find: FindExecutable,
    ):
        self._stage = stage = builder.stages.split.stages[index]
        self._index = index
        self._find = find
        group = groups[index]
        self.is_here = bool(group.local)
        self._copies = copies_to(group) if self.is_here else None
        values = builder.stages.split.values
        sent = [Sent(k, number, values[number].consumers) for k, number in enumerate(stage.sent)]
        self._routes = routes(sent, builder, index, groups)
        self._to_all = self._result_specs = None
        if stage.results and any(not each.is_local for each in groups):
            self._to_all = ToAll(groups)
            program = builder.program("forward", index)
            specs = jax.eval_shape(program.function, *program.arguments)
            self._result_specs = specs[2][: len(stage.results)]
        self._forward_taps = builder.stages.taps.forward(index)
        self._backward_taps = builder.stages.taps.backward(index)
        if mode is not Mode.TRAIN:
            self._held: list[tuple[int, int]] | None = None
            return
        passes = builder.stages.passes(index)
        self._passes = passes
        sources = ("batch", "carried", "sent", "residual")
        self._held = [(sources.index(source), position) for source, position in passes.held]
        returned = [
            Sent(k, number, (values[number].producer,)) for k, number in enumerate(passes.returns)
        ]
        self._answers = routes(returned, builder, index, groups)

    def forward(
        self,
        micro_batch: int,
        leaves: Sequence[np.ndarray],
        state: StageState,
        buffers: Buffers,
        *steps: np.ndarray,
    ) -> dict[int, jax.Array]:
        """Runs the stage forward, and returns its leaves of the step's result by their index."""
        stage, index = self._stage, self._index
        sent, results = None, None
        if self._copies is not None:
            batch = [self._copies.from_host(leaves[leaf]) for leaf in stage.batch]
            carried = buffers.take_carried(index, micro_batch, stage.carried)
            run = self._find("forward", index)
            sent, state.changing[index], results, residuals = run(
                state.weights[index],
                state.fixed[index],
                state.changing[index],
                batch,
                carried,
                *steps,
            )
            if self._forward_taps is not None:
                results, taps = results[: len(stage.results)], results[len(stage.results) :]
                buffers.tapped.append((micro_batch, self._forward_taps, taps))
            self._hold(micro_batch, buffers, (batch, carried, sent, residuals))
            if buffers.measurement is not None:
                # What no later program takes over: neither the state nor accumulators are.
                lasting = (sent or results or residuals)[:1]
                buffers.measurement.ran(carried, lasting or markers(state.changing[index]))
        self._send(micro_batch, sent, buffers)
        return self._share(results)

    def backward(
        self,
        micro_batch: int,
        state: StageState,
        buffers: Buffers,
        *factors: Any,
    ) -> None:
        """Runs the stage backward, and adds its gradients, times the factors, to the sums."""
        index = self._index
        if not self.is_here:
            self._answer(micro_batch, None, buffers)
            return
        held = buffers.take_held(index, micro_batch)
        cotangents = buffers.take_cotangents(index, micro_batch, self._passes.cotangents)
        run = self._find("backward", index)
        results = run(state.weights[index], held, cotangents, buffers.sums[index], *factors)
        returned = self._add(micro_batch, results, buffers, cotangents)
        self._answer(micro_batch, returned, buffers)

    def backward_input(self, micro_batch: int, state: StageState, buffers: Buffers) -> None:
        """Runs the half of backward that earlier stages wait for."""
        index, passes = self._index, self._passes
        if not self.is_here:
            self._answer(micro_batch, None, buffers)
            return
        held = buffers.take_held(index, micro_batch)
        cotangents = buffers.take_cotangents(index, micro_batch, passes.cotangents)
        returned: Arrays = []
        kept: Arrays = []
        if passes.returns:  # the first stage returns no cotangents: it has only the other half
            run = self._find("backward_input", index)
            returned, kept = run(state.weights[index], held, cotangents)
            self._answer(micro_batch, returned, buffers)
        left = (
            [held[k] for k in passes.weight_held],
            [cotangents[k] for k in passes.weight_cotangents],
            kept,
        )
        buffers.keep(index, micro_batch, left)
        if buffers.measurement is not None:
            buffers.measurement.ran(cotangents, (returned or kept)[:1])

    def backward_weight(
        self,
        micro_batch: int,
        state: StageState,
        buffers: Buffers,
        *factors: Any,
    ) -> None:
        """Runs the other half, and adds its gradients to the sums."""
        index = self._index
        if not self.is_here:
            return
        run = self._find("backward_weight", index)
        kept = buffers.take_kept(index, micro_batch)
        results = run(state.weights[index], *kept, buffers.sums[index], *factors)
        self._add(micro_batch, results, buffers, ())

    def _add(
        self,
        micro_batch: int,
        results: Sequence[Any],
        buffers: Buffers,
        inputs: Sequence[jax.Array],
    ) -> Arrays:
        """Keeps the new sums of a backward and what it has tapped; returns its cotangents."""
        returned, buffers.sums[self._index], *tapped = results
        if self._backward_taps is not None:
            buffers.tapped.append((micro_batch, self._backward_taps, tapped[0]))
        if buffers.measurement is not None:
            buffers.measurement.ran(inputs, returned[:1] or markers(buffers.sums[self._index]))
        return returned

    def zeros(self) -> Arrays:
        """Returns the gradient accumulators of the stage; none if it is in another process."""
        return self._find("zeros", self._index)() if self.is_here else []

    def reduce_replicas(self, sums: list[Arrays], state: StageState, steps: np.ndarray) -> None:
        """Adds up the results of an update over replicas, in `sums[stage]` and in the state."""
        index = self._index
        if not self.is_here:
            return
        run = self._find("reduce_replicas", index)
        by_replica = state.values_by_replica(index)
        sums[index], by_replica, whole = run(sums[index], by_replica, steps)
        state.reduce_replicas(index, by_replica, whole)

    def _hold(self, micro_batch: int, buffers: Buffers, sources: tuple[Arrays, ...]) -> None:
        """Leaves the arrays of a forward that its backward needs."""
        if self._held is not None:
            held = [sources[source][position] for source, position in self._held]
            buffers.hold(self._index, micro_batch, held)

    def _send(self, micro_batch: int, sent: Arrays | None, buffers: Buffers) -> None:
        for route in self._routes:
            for array, (_, number, stages) in route.carry(sent):
                for consumer in stages:
                    buffers.send(consumer, micro_batch, number, array)

    def _share(self, results: Arrays | None) -> dict[int, jax.Array]:
        """Returns the results of forward by their index, in every process."""
        indices = self._stage.results
        if self._to_all is None:
            return dict(zip(indices, results or [], strict=results is not None))
        shared = self._to_all.share(self._index, results, self._result_specs or [])
        return dict(zip(indices, shared, strict=True))

    def _answer(self, micro_batch: int, returned: Arrays | None, buffers: Buffers) -> None:
        for route in self._answers:
            for array, (_, number, (producer,)) in route.carry(returned):
                buffers.answer(producer, micro_batch, (number, self._index), array)
