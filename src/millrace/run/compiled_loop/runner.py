"""Runs the executions of a model in one piece in as few calls of compiled code as possible.

    execution.slices -> slice_calls -> executables -> results

With replicas an update accumulates over the batches of all replicas.
"""

import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from millrace._compat.jax_memory import in_device_memory
from millrace.base.interrupts import raise_if_interrupted, uninterrupted
from millrace.base.pytrees import ArrayTree
from millrace.compilation.executables.executable import Executable
from millrace.programs.feeds.block import Block, BlockSlice, Destination
from millrace.programs.plan import Plan
from millrace.programs.replicas.placement import Placement
from millrace.programs.steps.accumulate import Gradients, scale_of, weight_of
from millrace.programs.steps.state import State
from millrace.programs.taps.entries import CallResult, Taps
from millrace.run.compiled_loop.block_plans import BlockPlans, PlannedCall
from millrace.run.compiled_loop.dry_run import LoopDryRun
from millrace.run.compiled_loop.execution_calls import CallRules
from millrace.run.compiled_loop.plan_chooser import PlanChooser
from millrace.run.compiled_loop.protocol import (
    BlockSpan,
    ExecutionSteps,
    Halted,
    TapSink,
    halted_in_call,
    halted_in_calls,
    is_halted,
)
from millrace.run.processes.agreement import gathered
from millrace.run.timing.marker import markers
from millrace.run.timing.measurement import Measurement
from millrace.run.timing.tracer import Tracer

BatchTree = TypeVar("BatchTree")
_ONE = np.int32(1)
_CALLS = 16  # spans that a trace is expected to have


@dataclass(slots=True)
class OpenUpdate:
    """An update that takes several calls."""

    accumulated: Gradients
    first_rows: int
    steps: int = 0
    weight: float = 0.0  # sum of the coefficients so far
    # The values before it that micro-batches change, kept if it may be halted.
    before: State | None = None
    spans: list[BlockSpan] = field(default_factory=list)  # steps of blocks, one span per call


class ScanRunner:
    """Runs executions with the executables of one mode of one model."""

    statistics = None  # only pipelines have them

    def __init__(
        self,
        chooser: PlanChooser,
        plan: Plan,
        max_pending: int,
        single_steps: bool,
        tap_sink: TapSink,
    ):
        """Makes a runner.

        Args:
            chooser: of the model; has its executables.
            plan: of the mode; batch and capacity are replaced by those of each block.
            max_pending: most blocks that may be queued on the device besides the current one.
            single_steps: whether executions have one step, which needs no loop around it.
            tap_sink: receives results with taps while an execution runs.
        """
        self._chooser, self._executables = chooser, chooser.executables
        self._plan, self._replicas, self._update_steps = plan, plan.replicas, plan.update_steps
        self._max_pending = max_pending
        self._single_steps = single_steps
        self._rules = CallRules.of(plan, single_steps, 1, None)
        self._tap_sink = tap_sink
        self.tracer: Tracer | None = None
        self._measurement: Measurement | None = None  # of a running execution
        self._handed_over = 0  # results of a running execution that the tap_sink has
        self.halted: Halted | None = None
        self._pending: deque[Any] = deque()
        self._blocks = BlockPlans(chooser, plan, single_steps)
        self._block: Block | None = None
        self._batches: Any = None  # of the block, on the device
        self._leaves: Any = None  # the same, and their structure
        self._placement = Placement(plan)
        self._destination = Destination(plan.group)
        self._last_result: Any = None
        self.dispatches = 0
        self.is_timed = False
        self.dispatch_seconds = 0.0
        self._update: OpenUpdate | None = None
        self._first: State | None = None  # with which a running execution began
        self._newest: State | None = None  # of a running execution
        self._steps_done = 0  # of the last execution, which the newest state has
        self._calls = {
            "run": self._run_updates,
            "zeros": self._open_update,
            "accumulate": self._accumulate,
            "apply": self._apply,
        }

    def run(self, state: State, execution: ExecutionSteps) -> tuple[State, list[CallResult]]:
        """Runs one execution and does not wait for it; see `Runner.run`."""
        self._first, self._newest = state, None
        if not self._executables.knows(state):
            state = self._placement.enter(state)
        self._newest = state
        self._executables.see(state)
        self.extend_records(execution.longest)
        results: list[CallResult] = []
        self.halted, self._handed_over, self._update = None, 0, None
        self._steps_done = 0
        if (tracer := self.tracer) is not None:
            self._begin_trace(tracer)
        try:
            state = self._run(state, execution, results)
        except BaseException:
            if tracer is not None:
                self._measurement = None
                tracer.fail()
            raise
        if tracer is not None:
            self._measurement = None
            steps = sum(result.steps for result in results)
            tracer.end(-(-steps // self._update_steps))
        self._hand_over(results)
        self._executables.returned(state)
        self._first = self._newest = None
        return self._placement.leave(state), results

    def again(self, state: State, step: BlockSlice) -> tuple[State, CallResult] | None:
        """Runs one step as the step before has run; None if anything but its batch is another.

        Where each step is an execution, a plan for each would take longer than the step of a small
        model. Nothing waits for the device: `step` is of the block before, or the result of the
        block before has been read.
        """
        executable = self._blocks.again(step.block)
        if executable is None or self.tracer is not None or self.is_timed:
            return None
        if not self._executables.knows(state):
            return None
        if step.block is not self._block:
            self._block, self._batches = step.block, step.block.batches
            self._leaves = jax.tree.flatten(self._batches)
        batches, first = self._from(step.start)
        self._first, self._newest, self._update, self._steps_done = state, None, None, 0
        self.dispatches += 1
        with uninterrupted():
            state, result, taps = executable(state, batches, np.int32(first), _ONE)
            self._newest = state
            self._steps_done = 1
        self._executables.returned(state)
        self._first = self._newest = None
        return state, self._result_of(result, taps, step.start, 1, 1)

    def _run(self, state: State, execution: ExecutionSteps, results: list[CallResult]) -> State:
        if self._blocks.has_one_call and execution.longest == 1:
            for block_slice in execution.slices:
                self._enter(block_slice.block)
                planned = self._blocks.one_call(block_slice.start)
                state = self._run_updates(planned, state, results)
            return state
        rules = self._rules_of(execution)
        for planned in self._blocks.calls(execution.slices, rules, self._enter):
            if results and self._update is None:  # after the last call, callbacks come first
                raise_if_interrupted()
            state = self._calls[planned.call.program](planned, state, results)
            if self.halted is not None:
                break
        return state

    def _rules_of(self, execution: ExecutionSteps) -> CallRules:
        """Returns the rules of an execution: those of the one before, nearly always."""
        longest, chunk = execution.longest, execution.chunk
        if (longest, chunk) != (self._rules.longest, self._rules.chunk):
            self._rules = CallRules.of(self._plan, self._single_steps, longest, chunk)
        return self._rules

    def _run_updates(self, planned: PlannedCall, state: State, results: list[CallResult]) -> State:
        call, executable, start = planned
        batches, first = self._from(start)
        with uninterrupted():
            state, result, taps = self._call(executable, state, batches, first, call.steps)
            self._newest = state
            self._steps_done += call.steps
        size = self._update_steps
        if self._measurement is not None:
            self._measure(f"{call.steps} steps", jax.tree.leaves(result)[:1])
        results.append(self._result_of(result, taps, start, call.steps, call.steps // size))
        if is_halted(taps):
            self.halted = halted_in_call(
                results, self._current_block(), start, size, self._replicas
            )
            return state
        self._hand_over(results)
        return state

    def _open_update(self, planned: PlannedCall, state: State, results: list[CallResult]) -> State:
        del results
        plan = self._blocks.of_block
        # Copies: each call reuses the memory of the values before it.
        before = jax.tree.map(jnp.copy, state.changing()) if plan.taps.stops else None
        zeros = self._call(planned.executable, state)
        self._update = OpenUpdate(zeros, self._current_block().spec.rows, before=before)
        return state

    def _accumulate(self, planned: PlannedCall, state: State, results: list[CallResult]) -> State:
        call, executable, start = planned
        plan, update, block = self._blocks.of_block, self._opened(), self._current_block()
        reduction = plan.accumulation.reduction
        weight = weight_of(reduction, block.spec.rows, update.first_rows)
        with uninterrupted():
            state, update.accumulated, result, taps = self._call(
                executable,
                state,
                update.accumulated,
                self._batches,
                start,
                call.steps,
                np.float32(update.steps if reduction.is_running else weight),
            )
            self._newest = state
        self._measure(f"{call.steps} steps", jax.tree.leaves(result)[:1])
        results.append(self._result_of(result, taps, start, call.steps, 0))
        update.steps += call.steps
        update.weight += call.steps * weight
        update.spans.append((block, start, call.steps))
        return state

    def _apply(self, planned: PlannedCall, state: State, results: list[CallResult]) -> State:
        plan, update = self._blocks.of_block, self._opened()
        scale = scale_of(plan.accumulation.reduction, update.weight, plan.replicas)
        with uninterrupted():
            state, taps = self._call(
                planned.executable, state, update.accumulated, np.float32(scale), update.steps
            )
            self._newest, self._update = state, None
            self._steps_done += update.steps
        if self._measurement is not None:
            self._measure("update", markers(jax.tree.leaves(state)))
        if plan.tapped:  # taps of an update belong to the result of its last steps
            whole = results[-1].taps._replace(updates=taps.updates, halted=taps.halted)
            results[-1] = results[-1]._replace(taps=whole, updates=1)
            if is_halted(taps) and update.before is not None:
                self.halted = halted_in_calls(results, update.spans, plan.replicas)
                return state.with_changing(update.before)
        self._hand_over(results)
        return state

    def _from(self, start: int) -> tuple[Any, int]:
        """Returns the batches that a call takes, and the first of them that it runs."""
        if not self._blocks.steps_apart:
            return self._batches, start
        leaves, tree = self._leaves
        return jax.tree.unflatten(tree, [leaf[start : start + 1] for leaf in leaves]), 0

    def _current_block(self) -> Block:
        assert self._block is not None  # noqa: S101 - `_enter` precedes all calls
        return self._block

    def _opened(self) -> OpenUpdate:
        assert self._update is not None  # noqa: S101 - `zeros` precedes
        return self._update

    def _hand_over(self, results: list[CallResult]) -> None:
        """Hands the results of whole updates to the tap sink while later updates are dispatched."""
        begin, self._handed_over = self._handed_over, len(results)
        if new := results[begin:]:
            self._tap_sink(new)
            # An execution may tap more than fits into memory.
            if self._blocks.of_block.tapped:
                results[begin:] = [result._replace(taps=Taps()) for result in new]

    @property
    def state(self) -> State | None:
        """The newest state of a running execution, which is what remains if the execution fails."""
        return self._first if self._newest is None else self._placement.leave(self._newest)

    def metric_parts(self) -> list[jax.Array]:
        """Returns the metrics of each replica, `[replicas, ...]`; see `Runner.metric_parts`."""
        return [gathered(part) for part in self._placement.parts]

    def resume_metric_parts(self, parts: Sequence[np.ndarray]) -> None:
        """Gives the next execution metrics of each replica, as `metric_parts` returns them."""
        self._placement.resume(parts)

    @property
    def steps_done(self) -> int | None:
        """Steps of the last execution that its state has; None if that is within an update."""
        return self._steps_done if self._update is None else None

    def dry_run(self, single_steps: bool | None = None) -> LoopDryRun:
        """Returns a dry run that compiles for this runner; see `Runner.dry_run`."""
        single = self._single_steps if single_steps is None else single_steps
        return LoopDryRun(self._chooser, self._blocks.base, single)

    def extend_records(self, steps: int) -> None:
        """Makes sure that a call can return the results of `steps` steps, if they are wanted."""
        if self._blocks.extend_records(steps):
            self._block = None

    def gather(self, role: str, values: Iterable[jax.Array]) -> list[jax.Array]:
        """Returns values of the state in the form that variables hold; a collective operation."""
        if self._replicas == 1:
            return list(values)
        whole = [gathered(value) for value in values]
        # A model that is called outside of its loop computes with its weights.
        return list(map(in_device_memory, whole)) if role == "trainable" else whole

    def _enter(self, block: Block) -> None:
        """Makes `block` the current one, and waits while too many are queued."""
        if block is self._block:
            return
        self._limit_pending()
        self._block = block
        self._batches = self._on_devices(block.batches) if self._replicas > 1 else block.batches
        self._leaves = jax.tree.flatten(block.batches)
        self._blocks.enter(block)

    def _on_devices(self, batches: BatchTree) -> BatchTree:
        leaves, tree = jax.tree.flatten(batches)
        if self._destination.is_host_memory:
            leaves = self._destination.put(leaves)
        return jax.tree.unflatten(tree, leaves)

    def _result_of(
        self, result: ArrayTree, taps: Taps, start: int, steps: int, updates: int
    ) -> CallResult:
        self._last_result = result
        first = start % self._replicas
        return CallResult(result, steps, self._blocks.base.records, first, taps, updates)

    def _call(self, executable: Executable, *arguments: object) -> Any:
        self.dispatches += 1
        if self.tracer is None and not self.is_timed:
            return executable(*(np.int32(a) if isinstance(a, int) else a for a in arguments))
        self._began = time.perf_counter()
        result = executable(*(np.int32(a) if isinstance(a, int) else a for a in arguments))
        end = time.perf_counter()
        self.dispatch_seconds += end - self._began
        if self.tracer is not None and self.tracer.activities.is_watched:
            self.tracer.activities.add("host", "dispatch", self._began, end)
        return result

    def _begin_trace(self, tracer: Tracer) -> None:
        if tracer.begin():
            before = jax.tree.leaves(self._last_result)[:1]
            self._measurement = tracer.measure(_CALLS, 1, [before])

    def _measure(self, name: str, outputs: Sequence[jax.Array]) -> None:
        """Adds the call that has just been dispatched to a trace."""
        if self._measurement is not None:
            self._measurement.ran((), outputs)
            self._measurement.add(name, 0, self._began)

    def _limit_pending(self) -> None:
        """Waits while more blocks than allowed are queued on the device.

        JAX returns from a call before it has run, and would queue blocks as fast as they arrive.
        """
        if self._block is not None:
            self._pending.append(self._last_result)
        begin = time.perf_counter()
        while len(self._pending) > self._max_pending:
            jax.block_until_ready(self._pending.popleft())
        if self.tracer is not None:
            self.tracer.activities.add("host", "wait for devices", begin, time.perf_counter())

    def release(self) -> None:
        """Releases the blocks of a loop that has ended."""
        if self.tracer is not None:
            self.tracer.close()
        self._pending.clear()
        self._executables.forget()
        self._placement.release()
        self._block = self._batches = self._leaves = self._last_result = None
        self._blocks.release()
        self._first = self._newest = self._update = self.halted = None  # of one that has failed
