"""What Keras's loops call once per execution: `logs, state = function(state, execution)`."""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from millrace._compat.jax_arrays import is_non_finite_error
from millrace._compat.keras_loops import restore_state
from millrace.compiled_loop.executables import Executables
from millrace.compiled_loop.protocol import ExecutionSteps, Runner
from millrace.compiled_loop.result import CallResult, Halted
from millrace.compiled_loop.runner import ScanRunner
from millrace.errors import NonFiniteError
from millrace.feeds.block import BlockSlice
from millrace.feeds.blocks import stacked_blocks
from millrace.fit.checks import check_recomputed
from millrace.fit.controller import Controller
from millrace.fit.data_position import DataPosition
from millrace.fit.epochs import Execution, check_iterator
from millrace.fit.loop_functions import LastExecution, out_of_memory
from millrace.fit.multi_process import raise_failure_of_others
from millrace.fit.offloading import log_what_stays
from millrace.fit.stages import make_pipeline_runner, marks_of
from millrace.options import NO_OFFLOAD, NO_TAPS, TapRequest
from millrace.plan import BatchSpec, Mode, Plan
from millrace.processes.agreement import own_copy
from millrace.recomputation.options import recompute_of
from millrace.steps.state import State, as_state
from millrace.steps.tapped_step import tapping_optimizer
from millrace.taps.delivery import queues_of

# Work in one call where a queue takes values: what is carried out can be read after the call. A
# call costs 50 to 100 us; one of a large model on CPU some milliseconds, probably those in which
# the system clears new memory for it. With two steps a value is there before the second one after.
LIVE_SECONDS, LIVE_STEPS = 0.002, 2


class LoopFunction:
    """Train, test or predict function of one model. It holds the executables of its mode."""

    def __init__(self, controller: Controller, mode: Mode):
        setup = controller.setup
        setup.check(mode)
        self._controller = controller
        self.mode = mode
        # Found out now: while a loop runs, Keras takes the values out of the variables.
        assignment = setup.stages.assignment()
        self._accumulation = setup.accumulation
        trains = mode is Mode.TRAIN
        self._optimizer_taps = trains and tapping_optimizer(controller.model) is not None
        schedule = None if assignment is None else setup.options.pipelining.schedule_in_force
        recomputation = setup.options.recomputation
        self._recompute = (
            recompute_of(recomputation, schedule, setup.spans_processes) if trains else None
        )
        if self._recompute is not None:
            check_recomputed(controller.model)
        self._offload = NO_OFFLOAD
        if trains:
            self._offload = setup.offload
            is_new, is_pipelined = controller.totals.notes.is_new, assignment is not None
            log_what_stays(
                setup.options.offload, self._accumulation, is_pipelined, setup.devices, is_new
            )
        self._pipeline = None if assignment is None else marks_of(controller.model, assignment)
        self._log = controller.totals.compile_log
        exports = controller.totals.exports
        self._executables = Executables(
            controller.model, self._log, controller.functions.identity, exports
        )
        self._name = f"{mode.value} of {controller.model.name!r}"
        self._place = DataPosition(mode)
        self._runners: dict[tuple[bool, TapRequest], Runner] = {}
        # For `asynchronous.py`, when the results of every step are wanted: what the last execution
        # gave, still on the device, and how many steps a call may run before it gives something.
        self.parts: list[CallResult] = []
        self.chunk = 8
        # The update before which the last execution was halted, if it was.
        self.halted: Halted | None = None
        self.last = LastExecution()
        self._is_queued = False  # whether taps go into queues, which may be read at any time

    def __call__(self, state: State, iterator: Iterator[Any]) -> tuple[Any, State]:
        """Runs one execution.

        Args:
            state: values of the model's variables; consumed.
            iterator: an `Execution`, or any iterator of batches, such as `train_on_batch` makes.

        Raises:
            StopIteration: if there is no step left, which ends the epoch.
        """
        step_logs = self._controller.setup.options.asynchronous_callbacks
        runner = self._runner(step_logs)
        self._controller.functions.running = self
        self._log.runs(self._name)
        self._log.position = self._place
        if isinstance(iterator, Execution):
            iterator.check_mode(self.mode)
            slices: Iterable[BlockSlice] = iterator.take()
            longest = iterator.longest
            self._place.begin(iterator.epoch, iterator.begin)
        else:
            check_iterator(self._controller, self.mode)
            self._place.begin(None, 0)
            slices = self._slices_of(iterator)
            longest = sum(block_slice.count for block_slice in slices)
        self.last = LastExecution(longest, self.last.batch)
        slices = self._noted(slices)
        dispatches = runner.dispatches
        chunk = self._chunk(step_logs)
        try:
            state, parts = runner.run(as_state(state), ExecutionSteps(slices, longest, chunk))
        except BaseException as error:
            with contextlib.suppress(Exception):  # what follows from this one
                self._end_deliveries()
            raise_failure_of_others(error)
            self._rescue(runner.state)
            self.last = self.last._replace(out_of_memory=out_of_memory(error))
            if is_non_finite_error(error) and not isinstance(error, NonFiniteError):
                raise NonFiniteError(
                    f"A {error.args[-1]} came out of '{self.mode.value}_run' over {longest} "
                    "steps, where jax_debug_nans or jax_debug_infs told JAX to look for one. The "
                    "model has the weights from before these steps. Set steps_per_execution=1 to "
                    "find the step, or use keras.callbacks.TerminateOnNaN() to only stop."
                ) from error
            raise
        self.halted = runner.halted
        self._end_deliveries()
        self._controller.totals.add_execution(runner.dispatches - dispatches, runner.statistics)
        if not parts:
            raise StopIteration
        parts = [part._replace(result=jax.tree.map(own_copy, part.result)) for part in parts]
        self.parts = parts if step_logs else []
        return self._combine(parts, step_logs), state

    def _chunk(self, step_logs: bool) -> int | None:
        """Returns how many steps a call may run at most; None: as many as there are."""
        chunks = [self.chunk] if step_logs else []
        if self._is_queued:
            seconds = self._controller.watchers.outfeed.seconds_per_step
            chunks.append(max(LIVE_STEPS, round(LIVE_SECONDS / seconds) if seconds else 0))
        return min(chunks, default=None)

    def _deliver(self, parts: Sequence[CallResult]) -> None:
        """Hands over what taps have carried out. Runners call it while an execution runs."""
        wanted = self.mode is Mode.TRAIN and bool(
            self._controller.watchers.taps
        )  # steps are counted
        tapped = [part for part in parts if wanted or part.taps.steps or part.taps.updates]
        if not tapped:
            return
        outfeed = self._controller.watchers.outfeed
        self._is_queued = any(queues_of(part.taps) for part in tapped)
        outfeed.deliver(tapped, self._controller.setup.replicas)

    def _end_deliveries(self) -> None:
        """Ends the outfeed's thread after a single batch, after which nobody else does."""
        if not self._controller.is_running:
            self._controller.watchers.outfeed.close()

    def runner(self) -> Runner:
        """Returns what runs an execution, with the options that are in force now."""
        return self._runner(self._controller.setup.options.asynchronous_callbacks)

    def _noted(self, slices: Iterable[BlockSlice]) -> Iterator[BlockSlice]:
        """Takes note of the batches, for what is said of an execution that fails."""
        for block_slice in slices:
            self.last = self.last._replace(batch=block_slice.block.spec)
            yield block_slice
            self._place.add(block_slice.count)

    @property
    def offloads(self) -> bool:
        """Whether something rests in host memory."""
        return self._offload != NO_OFFLOAD

    def gather(self, role: str, values: Any) -> Any:
        """Returns values of the state as variables of the model can hold them."""
        return self.runner().gather(role, values)

    def release(self) -> None:
        """Lets go of the data of a loop that has ended."""
        self.parts = []
        for runner in self._runners.values():
            runner.release()

    def _runner(self, step_logs: bool) -> Runner:
        taps = self._controller.watchers.taps if self.mode is Mode.TRAIN else NO_TAPS
        key = (step_logs, taps)
        if key not in self._runners:
            self._runners[key] = self._make_runner(*key)
        return self._runners[key]

    def _make_runner(self, step_logs: bool, taps: TapRequest) -> Runner:
        controller, setup = self._controller, self._controller.setup
        options = setup.options
        plan = Plan(
            mode=self.mode,
            batch=BatchSpec(None, (), ()),
            capacity=0,
            accumulation=self._accumulation,
            step_logs=step_logs,
            records=0,
            group=setup.groups[0],
            replication=options.replication,
            recompute=self._recompute,
            offload=self._offload,
            taps=taps,
            tapped=bool(taps) or self._optimizer_taps,
        )
        if self._pipeline is not None:
            return make_pipeline_runner(
                controller.model,
                *self._pipeline,
                options.pipelining,
                plan,
                setup.groups,
                self._log,
                controller.functions.identity,
                controller.totals.exports,
                self._deliver,
            )
        return ScanRunner(
            self._executables,
            plan,
            max_pending=options.feed.prefetch_depth,
            single_steps=controller.model.steps_per_execution == plan.replicas == 1,
            outlet=self._deliver,
        )

    def _rescue(self, state: State | None) -> None:
        """Puts the newest values back into the model, from where Keras took them."""
        if state is not None and not any(leaf.is_deleted() for leaf in jax.tree.leaves(state)):
            restore_state(self._controller.model, state)

    def _slices_of(self, iterator: Iterator[Any]) -> list[BlockSlice]:
        controller, setup = self._controller, self._controller.setup
        longest = max(controller.model.steps_per_execution, setup.update_steps(self.mode))
        batches = [batch for batch, _ in zip(iterator, range(longest), strict=False)]
        shape = controller.feeds.block_shape(setup, self.mode, len(batches) or 1, on_batch=True)
        blocks = stacked_blocks(iter(batches), [len(batches)], shape, setup.destination)
        return [BlockSlice(block, 0, block.steps) for block in blocks]

    def _combine(self, parts: list[CallResult], step_logs: bool) -> Any:
        if self.mode is Mode.PREDICT:
            return _concatenate([(_merged if step_logs else _used_rows)(part) for part in parts])
        last = parts[-1]
        if step_logs:
            return jax.tree.map(lambda leaf: leaf[last.first + last.steps - 1], last.result)
        return last.result


def _used_rows(part: CallResult) -> Any:
    """Outputs `[records * rows, ...]` without those of steps that were not run.

    `rows` is the output's own number: it may differ from the input's.
    """

    def used(leaf: jax.Array) -> jax.Array:
        rows = len(leaf) // part.records
        whole = part.steps == part.records
        return leaf if whole else leaf[part.first * rows : (part.first + part.steps) * rows]

    return jax.tree.map(used, part.result)


def _merged(part: CallResult) -> Any:
    """Outputs `[records, rows, ...]` as `[steps * rows, ...]`."""
    used = slice(part.first, part.first + part.steps)
    return jax.tree.map(lambda leaf: leaf[used].reshape(-1, *leaf.shape[2:]), part.result)


def _concatenate(outputs: list[Any]) -> Any:
    if len(outputs) == 1:
        return outputs[0]
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *outputs)
