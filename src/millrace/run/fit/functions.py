"""The function that Keras's fit loop calls: `logs, state = function(state, execution)`."""

import contextlib
import logging
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from millrace._compat.jax_arrays import is_non_finite_error, looks_for_non_finite
from millrace._compat.keras_loops import restore_state, variables_of
from millrace._compat.keras_steps import stored_value
from millrace.base.error_notes import add_note
from millrace.base.options import NO_OFFLOAD, NO_TAPS, Feed, TapRequest
from millrace.base.pytrees import ArrayTree
from millrace.base.records.tensors import non_finite_data
from millrace.compilation.explain.constants import Constants
from millrace.errors import NonFiniteError, RecompilationError
from millrace.programs.feeds.block import BlockSlice, SpecReader
from millrace.programs.feeds.blocks import block_of_one, stacked_blocks
from millrace.programs.plan import BatchSpec, Mode, Plan
from millrace.programs.recomputation.modes import recompute_of
from millrace.programs.steps.state import State, from_keras, to_keras
from millrace.programs.steps.step import logs_follow_from_metrics
from millrace.programs.steps.tapped_step import tapping_optimizer
from millrace.programs.taps.delivery import queues_of
from millrace.programs.taps.entries import CallResult
from millrace.run.compiled_loop.executables import Executables
from millrace.run.compiled_loop.plan_chooser import PlanChooser
from millrace.run.compiled_loop.protocol import ExecutionSteps, Halted, Runner, batches_of
from millrace.run.compiled_loop.runner import ScanRunner
from millrace.run.fit.controller import Controller
from millrace.run.fit.data_position import DataPosition
from millrace.run.fit.execution import Execution, check_iterator
from millrace.run.fit.execution_records import ExecutionRecords
from millrace.run.fit.model_functions import LastExecution, out_of_memory
from millrace.run.fit.multi_process import agree_on_stages, raise_failure_of_others
from millrace.run.fit.offloading import log_not_offloaded
from millrace.run.fit.pipelined_model import make_pipeline_runner, marks_of, with_default_schedule
from millrace.run.pipelines.assignment.layer_calls import find_calls
from millrace.run.pipelines.programs.equation_stages import Marks
from millrace.run.processes.agreement import own_copy

# Work in one call where a queue takes values: what is carried out can be read after the call. A
# call costs 50 to 100 us; one of a large model on CPU some milliseconds, probably those in which
# the system clears new memory for it. With two steps a value is there before the second one after.
LIVE_SECONDS, LIVE_STEPS = 0.002, 2

logger = logging.getLogger("millrace")

KerasParts: TypeAlias = Iterable[Iterable[Any]]  # the state as Keras has it


class LoopFunction:
    """Train, test or predict function of one model, with the executables of its mode."""

    def __init__(self, controller: Controller, mode: Mode):
        setup = controller.setup
        setup.check(mode)
        self._controller = controller
        self.mode = mode
        # Now: while a loop runs, Keras takes the values out of the variables.
        assignment = setup.stages.assignment()
        self._accumulation = setup.accumulation
        trains = mode is Mode.TRAIN
        self._optimizer_taps = trains and tapping_optimizer(controller.model) is not None
        schedule = None if assignment is None else setup.options.pipelining.schedule_in_force
        recomputation = setup.options.recomputation
        self._recompute = recompute_of(recomputation, schedule) if trains else None
        self._offload = NO_OFFLOAD
        if trains:
            self._offload = setup.offload
            is_new, is_pipelined = controller.totals.notes.is_new, assignment is not None
            log_not_offloaded(
                setup.options.offload, self._accumulation, is_pipelined, setup.devices, is_new
            )
        self._assignment = assignment
        by_list = assignment is not None and (assignment.is_open or assignment.stages is not None)
        self._calls = find_calls(controller.model) if by_list else ()
        self._has_begun = False
        self._log = controller.totals.compile_log
        exports = controller.totals.exports
        self._chooser = PlanChooser(
            Executables(controller.model, self._log, controller.functions.identity, exports),
            setup.options.feed.prefetch_depth,
            controller.totals.memory,
            setup.options.feed.max_block_bytes == Feed().max_block_bytes,
        )
        self._name = f"{mode.value} of {controller.model.name!r}"
        self._position = DataPosition(mode)
        self._runners: dict[tuple[bool, TapRequest], Runner] = {}
        self._current: tuple[tuple[bool, TapRequest], Runner] | None = None  # the last one used
        # For `asynchronous.py`, where the results of every step are wanted: those of the last
        # execution, still on the device, and how many steps a call may run before it returns some.
        self.calls: list[CallResult] = []
        self.chunk = 8
        self._is_gathered = True  # what the execution returns, in predict
        self.logs: ArrayTree = None  # of the last execution
        self._metric: tuple[Any, ...] = ()  # values of the metrics after it
        is_in_one_piece = assignment is None and setup.replicas == 1
        self._logs_follow = is_in_one_piece and logs_follow_from_metrics(controller.model, mode)
        # The update before which the last execution was halted, if any.
        self.halted: Halted | None = None
        self.last = LastExecution()
        self._records = ExecutionRecords(controller, mode, self._position)
        self._specs = SpecReader()  # of batches that come one by one
        self._single: BatchSpec | None = None  # of the last one, if it is a block as it is
        self._constants: Constants | None = None  # of its programs
        self._looked: tuple[int, int] | None = None  # for changed ones: in which loop and epoch
        self._is_queued = False  # whether taps go into queues, which users read at any time

    def __call__(
        self, state: KerasParts, iterator: Iterator[ArrayTree]
    ) -> tuple[ArrayTree, KerasParts]:
        """Runs one execution.

        Args:
            state: values of the model's variables, as Keras passes them; consumed.
            iterator: an `Execution`, or any iterator of batches, such as `train_on_batch` makes.

        Raises:
            StopIteration: if no step is left, which ends the epoch.
        """
        values = from_keras(state, self.mode)
        if isinstance(iterator, Execution):
            iterator.check_mode(self.mode)
            if iterator.logs is not None:
                self._controller.functions.running = self
                self.calls, self.logs = [], iterator.logs
                self.resume_metric_parts(())  # of the epoch that ends here: the next begins at 0
                return iterator.logs, state
            self._position.begin(iterator.epoch, iterator.begin)
            self._is_gathered = self._controller.gathers_outputs or self.mode is not Mode.PREDICT
            now = self._controller.loop, iterator.epoch
            looks, self._looked = self._looked != now, now
            compiled = len(self._log.executables) if looks else 0
            step = iterator.at_hand() if self._runs_again else None
            if step is None:
                logs, values = self._run(values, iterator.take(), iterator.longest)
            else:
                logs, values = self._run_step(values, step)
            if looks:
                self._look_at_constants(len(self._log.executables) > compiled)
        else:
            check_iterator(self._controller.model, self.mode)
            logs, values = self._run_by_hand(values, self._slices_of(iterator))
        self._metric = values.metric
        return logs, to_keras(values, self.mode)

    def _look_at_constants(self, has_compiled: bool) -> None:
        """Warns of values that the programs have read, and that have changed since."""
        model, is_new = self._controller.model, self._controller.totals.notes.is_new
        if self._constants is None or has_compiled:
            self._constants = Constants(model, self.mode)
            for name in self._constants.draws:
                if is_new(f"drawn: {name} {model.name}"):
                    logger.warning(_DRAWN, name, self.mode.value, model.name)
            return
        for name, old, new in self._constants.changed():
            if is_new(f"changed: {name} {model.name}"):
                logger.warning(_CHANGED, name, old, new, self.mode.value, model.name)

    def run_batch(self, state: State, batch: ArrayTree) -> tuple[ArrayTree, State]:
        """Runs one batch of arrays, as `train_on_batch` and the like do."""
        spec, self._is_gathered = self._specs.read(batch), True
        if spec is not self._single:
            return self._run_by_hand(state, self._slices_of(iter((batch,))))
        step = BlockSlice(block_of_one(batch, spec), 0, 1)
        if not self._runs_again:
            return self._run_by_hand(state, [step])
        self._position.begin(None, 0)
        return self._run_step(state, step)

    @property
    def _runs_again(self) -> bool:
        """Whether steps may run as the one before, since nobody looks at how they run."""
        controller, totals = self._controller, self._controller.totals
        return (
            controller.functions.running is self
            and controller.functions.recorder is None
            and not self._returns_each_step
            and not (controller.watchers.outfeed.listeners or looks_for_non_finite())
            and totals.records is None
            and totals.operation_trace is None
        )

    @property
    def _returns_each_step(self) -> bool:
        """Whether callbacks want the results of every step."""
        return self._controller.setup.options.asynchronous_callbacks or not self._is_gathered

    def _run_step(self, state: State, step: BlockSlice) -> tuple[ArrayTree, State]:
        """Runs one step, as the one before if that is possible."""
        runner, spec = self._runner(False), step.block.spec
        self._log.runs(self._name)  # another model may have run since
        self.last.begin(1)
        self.last.batch = spec
        self._position.run(1, spec)
        try:
            found = runner.again(state, step) if isinstance(runner, ScanRunner) else None
        except BaseException as error:
            self._explain(error, runner, 1)
            raise
        if found is None:
            return self._run(state, [step], 1)
        state, call = found
        self._position.add(1)
        self.halted = None
        self._controller.totals.add_execution(1, None)
        if self._position.epoch:
            self._tell_checkpoints(runner)
        self.logs = self._combine([call], False)
        return self.logs, state

    def _run_by_hand(self, state: State, slices: list[BlockSlice]) -> tuple[ArrayTree, State]:
        self._position.begin(None, 0)
        return self._run(state, slices, sum(each.count for each in slices))

    def _run(
        self, state: State, slices: Iterable[BlockSlice], longest: int
    ) -> tuple[ArrayTree, State]:
        step_logs = self._returns_each_step
        runner = self._runner(step_logs)
        self._controller.functions.running = self
        self._log.runs(self._name)
        self._log.position = self._position
        self.last.begin(longest)
        slices = self._remembered(slices)
        dispatches = runner.dispatches
        # A call returns the memory of a whole block, of which a chunk would fill a part.
        chunk = self._chunk(step_logs and self._is_gathered)
        self._records.begin(runner, longest, state)
        try:
            state, calls = runner.run(state, ExecutionSteps(slices, longest, chunk))
        except BaseException as error:
            self._records.end(runner, longest, None)
            self._explain(error, runner, longest)
            raise
        self._records.end(runner, longest, (state, calls))
        self.last.spans.clear()
        self.halted = runner.halted
        self._end_deliveries()
        self._controller.totals.add_execution(runner.dispatches - dispatches, runner.statistics)
        if self._position.epoch:  # not `train_on_batch` of a callback
            self._tell_checkpoints(runner)
        if not calls:
            raise StopIteration
        if self._controller.setup.spans_processes:
            calls = [call._replace(result=jax.tree.map(own_copy, call.result)) for call in calls]
        self.calls = calls if step_logs else []
        self.logs = self._combine(calls, step_logs)
        return self.logs, state

    def _explain(self, error: BaseException, runner: Runner, steps: int) -> None:
        """Saves the state of an execution that has failed, and raises the error that explains it.

        Raises:
            NonFiniteError: if JAX was told to look for values that are not finite.
        """
        with contextlib.suppress(Exception):  # errors that follow from this one
            self._end_deliveries()
        raise_failure_of_others(error)
        self._rescue(runner.state)
        self._tell_checkpoints(runner)
        self.last.out_of_memory = out_of_memory(error)
        if is_non_finite_error(error) and not isinstance(error, NonFiniteError):
            span = self._position.span()
            raise NonFiniteError(
                f"A {error.args[-1]} came out of '{self.mode.value}_run' over {steps} "
                f"steps{f' ({span})' if span else ''}, where jax_debug_nans or jax_debug_infs told "
                f"JAX to look for one. {self._non_finite_data()}The model has the weights from "
                "before these steps. Set steps_per_execution=1 to find the step; or, with neither "
                "of these on, use millrace.callbacks.NaNWatch(), which names the tensor."
            ) from error
        place = self._position.of_error()
        if place and isinstance(error, Exception) and not isinstance(error, RecompilationError):
            add_note(error, f"raised in {place}.")

    def _tell_checkpoints(self, runner: Runner) -> None:
        if self._controller.checkpoints is not None and self.mode is Mode.TRAIN:
            self._controller.checkpoints.has_run(runner.steps_done)

    def _non_finite_data(self) -> str:
        """Describes the first data of the execution that is not finite, if there is some."""
        batches = batches_of(self.last.spans, self._controller.setup.replicas)
        self.last.spans.clear()
        for each in non_finite_data(batches)[:1]:
            return (
                f"The data is not finite: of {self._position.name(each.micro_batch)}, {each}, "
                "counted from 0. "
            )
        return ""

    def _chunk(self, step_logs: bool) -> int | None:
        """Returns the most steps of a call; None for no limit."""
        chunks = [self.chunk] if step_logs else []
        if self._is_queued:
            seconds = self._controller.watchers.outfeed.seconds_per_step
            chunks.append(max(LIVE_STEPS, round(LIVE_SECONDS / seconds) if seconds else 0))
        return min(chunks, default=None)

    def _deliver(self, calls: Sequence[CallResult]) -> None:
        """Delivers tapped values. Runners call it while an execution runs."""
        # A listener counts steps, so it gets those without taps, too.
        wanted = self.mode is Mode.TRAIN and bool(self._controller.watchers.taps)
        tapped = [call for call in calls if wanted or call.taps.steps or call.taps.updates]
        if not tapped:
            return
        outfeed = self._controller.watchers.outfeed
        self._is_queued = any(queues_of(call.taps) for call in tapped)
        outfeed.deliver(tapped, self._controller.setup.replicas)

    def _end_deliveries(self) -> None:
        """Ends the threads after `train_on_batch`, which no loop surrounds."""
        if not self._controller.is_running:
            self._controller.watchers.outfeed.close()
            self._records.close()

    def runner(self) -> Runner:
        """Returns the runner for the options in force."""
        return self._runner(self._controller.setup.options.asynchronous_callbacks)

    def _remembered(self, slices: Iterable[BlockSlice]) -> Iterator[BlockSlice]:
        """Yields slices, and remembers their batches for the error of an execution that fails."""
        for block_slice in slices:
            block, start, count = block_slice.block, block_slice.start, block_slice.count
            self.last.batch = block.spec
            if not self._has_begun:
                self.begin(block.spec)
            if looks_for_non_finite() and not self._controller.setup.spans_processes:
                self.last.spans.append((block, start, count))
            self._position.run(count, block.spec)
            yield block_slice
            self._position.add(count)

    def begin(self, batch: BatchSpec) -> None:
        """Before the first batch: decides the stages of `"auto"`, if nothing has.

        Training decides them for the model, whose other functions are then made anew.
        """
        setup, trains = self._controller.setup, self.mode is Mode.TRAIN
        if self._assignment is not None and self._assignment.is_open:
            self._assignment = setup.stages.decide(batch, self._calls)
            agree_on_stages(setup, self._assignment, batch)
            if trains:
                setup.stages.put(self._assignment)
                self._controller.functions.compiled = {Mode.TRAIN: self}
        if trains:
            setup.stages.trained = batch
        self._has_begun = True

    def _marks(self, batch: BatchSpec) -> Marks:
        assignment = self._assignment
        if assignment is None or assignment.is_open:  # a dry run, which decides nothing
            assignment = self._assignment = self._controller.setup.stages.decide(batch, self._calls)
        return marks_of(self._calls, assignment)

    @property
    def takes_single_batches(self) -> bool:
        """Whether it has run, and the state that it returns has the form that variables hold."""
        return self._single is not None

    @property
    def offloads(self) -> bool:
        """Whether some values are kept in host memory."""
        return self._offload != NO_OFFLOAD

    @property
    def shortened(self) -> Mapping[BatchSpec, int]:
        """Steps of blocks that a budget makes shorter than their options."""
        return self._chooser.shortened

    def gather(self, role: str, values: Iterable[jax.Array]) -> Iterable[jax.Array]:
        """Returns values of the state in the form that variables of the model hold."""
        return self.runner().gather(role, values)

    def metric_parts(self) -> list[jax.Array]:
        """Returns the metrics of each replica; see `Runner.metric_parts`."""
        return self.runner().metric_parts()

    def resume_metric_parts(self, parts: Sequence[np.ndarray]) -> None:
        """Lets the next execution continue with metrics of each replica."""
        self.runner().resume_metric_parts(parts)

    def ended_with(self, logs: object) -> bool:
        """Whether these logs are what the metrics say now, which have not changed since."""
        variables = variables_of(self._controller.model, "metric")
        return (
            (logs is self.logs and self._logs_follow and self.halted is None)
            and len(variables) == len(self._metric)
            and all(map(operator.is_, map(stored_value, variables), self._metric))
        )

    def release(self) -> None:
        """Frees the data of a loop that has ended."""
        self.calls, self.logs, self._metric = [], None, ()
        for runner in self._runners.values():
            runner.release()

    def _runner(self, step_logs: bool) -> Runner:
        taps = self._controller.watchers.taps if self.mode is Mode.TRAIN else NO_TAPS
        key = (step_logs, taps)
        if self._current is None or self._current[0] != key:  # a hash would take longer
            if key not in self._runners:
                self._runners[key] = self._make_runner(*key)
            self._current = (key, self._runners[key])
        return self._current[1]

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
        if self._assignment is not None:
            pipelining = options.pipelining
            if controller.totals.memory is None:
                pipelining = with_default_schedule(pipelining, plan, setup.groups)
            return make_pipeline_runner(
                controller.model,
                self._calls,
                self._marks,
                self._assignment.num_stages,
                pipelining,
                plan,
                setup.groups,
                self._log,
                controller.functions.identity,
                controller.totals.exports,
                self._deliver,
            )
        return ScanRunner(
            self._chooser,
            plan,
            max_pending=options.feed.prefetch_depth,
            single_steps=setup.steps_per_execution(self.mode) == 1,
            tap_sink=self._deliver,
        )

    def _rescue(self, state: State | None) -> None:
        """Puts the newest values back into the model's variables."""
        if state is not None and not any(leaf.is_deleted() for leaf in jax.tree.leaves(state)):
            restore_state(self._controller.model, to_keras(state, self.mode))

    def _slices_of(self, iterator: Iterator[ArrayTree]) -> list[BlockSlice]:
        controller, setup = self._controller, self._controller.setup
        longest = max(controller.model.steps_per_execution, setup.update_steps(self.mode))
        batches = [batch for batch, _ in zip(iterator, range(longest), strict=False)]
        shape = controller.feeds.block_shape(setup, self.mode, len(batches) or 1, on_batch=True)
        if len(batches) == 1 and setup.replicas == 1 and setup.destination.is_host_memory:
            spec = self._specs.read(batches[0])
            if shape.capacity(spec, 1) == 1:
                self._single = spec
                return [BlockSlice(block_of_one(batches[0], spec), 0, 1)]
        blocks = stacked_blocks(iter(batches), [len(batches)], shape, setup.destination)
        return [BlockSlice(block, 0, block.steps) for block in blocks]

    def _combine(self, calls: list[CallResult], step_logs: bool) -> ArrayTree:
        if not self._is_gathered:
            return jax.tree.map(_no_row, calls[-1].result)
        if self.mode is Mode.PREDICT:
            return _concatenate([(_merged if step_logs else _used_rows)(call) for call in calls])
        last = calls[-1]
        if step_logs:
            return jax.tree.map(lambda leaf: leaf[last.first + last.steps - 1], last.result)
        return last.result


_CHANGED = (
    "%s: changed from %s to %s since the %s function of %r was compiled, which goes on with the "
    "old value, a constant of its program. Keep it in a keras.Variable that is an attribute of the "
    "model or a layer, and assign to that; or call compile() again."
)
_DRAWN = (
    "%s: drew random numbers once, when the %s function of %r was compiled, which has the same "
    "ones in every step. Draw them by keras.random, with a keras.random.SeedGenerator that is an "
    "attribute of the model or a layer."
)


def _used_rows(call: CallResult) -> ArrayTree:
    """Returns outputs `[records * rows, ...]` without those of steps that were not run.

    `rows` is that of the output, which may differ from the input's.
    """
    if call.steps == call.records:
        return call.result

    def used(leaf: jax.Array) -> jax.Array:
        rows = len(leaf) // call.records
        return leaf[call.first * rows : (call.first + call.steps) * rows]

    return jax.tree.map(used, call.result)


def _no_row(leaf: jax.Array) -> np.ndarray:
    return np.empty((0, *leaf.shape[2:]), leaf.dtype)


def _merged(call: CallResult) -> ArrayTree:
    """Returns outputs `[records, rows, ...]` as `[steps * rows, ...]`."""
    used = slice(call.first, call.first + call.steps)
    return jax.tree.map(lambda leaf: leaf[used].reshape(-1, *leaf.shape[2:]), call.result)


def _concatenate(outputs: list[ArrayTree]) -> ArrayTree:
    if len(outputs) == 1:
        return outputs[0]
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *outputs)
