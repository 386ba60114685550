"""Plan -> programs of a model in one piece.

    name         arguments                                    results
    run          state, batches, start, count                 state, result, taps
    accumulate   state, accumulated, batches, start, count,   state, accumulated, result, taps
                 coefficient
    zeros        state                                        accumulated
    apply        state, accumulated, scale, steps             state, taps

`run` is the path of nearly every step: `count` steps of a block from `start` on, as whole updates.
The others are for updates that no single block holds whole: the shorter one at the end of an
epoch, and one whose last batch has another shape. `result` is the logs after the last step, or
with `step_logs` and when predicting those of every step, `[records, ...]`.
"""

import time
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import keras

from millrace._compat.jaxpr import primitive_counts
from millrace._compat.keras_steps import metric_logs
from millrace.base.pytrees import ArrayTree, LayoutTree, SpecTree
from millrace.programs.plan import LoopForm, Mode, Plan, choose_loop_form
from millrace.programs.recomputation.step import has_choice
from millrace.programs.steps.accumulate import (
    Accumulator,
    Factor,
    Gradients,
    coefficient_of,
    make_accumulator,
)
from millrace.programs.steps.loop import (
    BatchRange,
    Computed,
    LoopCarry,
    PendingUpdate,
    UpdateLoop,
    batch_at,
    can_wait,
    run_until_halted,
    unless,
)
from millrace.programs.steps.offload import (
    fetched,
    fetched_after,
    host_layout,
    host_layouts_of_state,
    offloaded,
    offloaded_accumulator,
    with_host_layouts,
)
from millrace.programs.steps.program import FACTOR, INDEX, Program, batch_specs, merge_steps
from millrace.programs.steps.repetition import Index, repeat
from millrace.programs.steps.state import State
from millrace.programs.steps.step import (
    apply_gradients,
    logs_follow_from_metrics,
    make_accumulating_step,
    make_gradient_step,
    make_step,
    make_updating_step,
)
from millrace.programs.steps.tapped_step import make_tapped_step, make_tapped_update
from millrace.programs.taps.entries import (
    Taps,
    empty_entries,
    empty_taps,
    max_tapped_steps,
    record_at,
)
from millrace.programs.taps.taps import Tapped, collection_open


class ProgramBuilder:
    """Makes the programs of one plan. The step is traced once, however many are made of it."""

    def __init__(self, model: keras.Model, plan: Plan, state: State):
        """Traces one step.

        Args:
            model: a compiled Keras model.
            plan: describes the programs.
            state: specs of the state, as trees of `jax.ShapeDtypeStruct`.
        """
        self._model = model
        self._plan = plan
        self._host_layouts = host_layouts_of_state(plan, state)
        self._state = with_host_layouts(state, self._host_layouts)
        self._batches = batch_specs(plan, (plan.capacity,))
        trains = plan.mode is Mode.TRAIN
        # Offloaded values are fetched between gradients and update, so the step is divided there;
        # a `train_step` that the user wrote contains both, and begins with all of the state.
        is_own = type(model).train_step is not keras.Model.train_step  # type: ignore[attr-defined]
        fetches = not is_own and bool(jax.tree.leaves(self._host_layouts))
        # In the order of a step a gradient is used once it is there: for the update, or for a sum.
        steps, in_parts = plan.accumulation.steps, plan.division.parts > 1
        in_order = trains and has_choice(plan) and not plan.tapped and not in_parts
        self._updates_in_order = in_order and steps == 1 and not fetches
        self._adds_in_order = in_order and steps > 1 and not any(self._accumulator_host_layouts)
        self._accumulates = trains and (
            steps > 1
            or in_parts
            or plan.tapped
            or (plan.recompute is not None and not self._updates_in_order)
            or fetches
        )
        self._step, self._update = self._functions()
        self._update_loop = UpdateLoop(
            self._step, self._accumulating_step, self._record, lambda: self._accumulator, plan
        )
        begin = time.perf_counter()
        with collection_open(keeps=False) as tapped:
            traced = self._traced(state)
        # Whether the model taps values itself, which are carried out only if the plan says so.
        self.taps_values = bool(tapped)
        self.trace_seconds = time.perf_counter() - begin
        result, self._step_taps = traced.out_info
        self._step_result = result[-1]
        self._update_taps = (
            self._specs_of_update_taps(state, result[0]) if plan.tapped else Tapped()
        )
        # Most steps of a call whose taps fit into its results; None where nothing is tapped.
        update_steps, taps = plan.accumulation.steps if trains else 1, self._step_taps
        self.max_tapped_steps = (
            max_tapped_steps(taps, self._update_taps, plan.records, update_steps)
            if plan.tapped
            else None
        )
        # Then a loop carries no logs from step to step.
        self._logs_at_end = not plan.each_step and logs_follow_from_metrics(model, plan.mode)
        self.form = choose_loop_form(
            plan.mode, plan.group.platform, primitive_counts(traced.jaxpr.jaxpr.eqns)
        )

    @cached_property
    def _accumulator(self) -> Accumulator:
        accumulator = make_accumulator(self._model.trainable_variables, self._plan.accumulation)
        return offloaded_accumulator(accumulator, self._accumulator_host_layouts)

    @cached_property
    def _accumulator_host_layouts(self) -> list[Any]:
        plan, group = self._plan, self._plan.group
        variables = self._model.trainable_variables
        zeros = jax.eval_shape(make_accumulator(variables, plan.accumulation).zeros)
        return [host_layout(plan, "gradient", spec, group.whole) for spec in zeros]

    def _functions(self) -> tuple[Any, Any]:
        """Returns the step and the update, each with its taps, if any."""
        model, plan = self._model, self._plan
        if plan.tapped:
            return jax.jit(make_tapped_step(model, plan)), make_tapped_update(model, plan)
        if self._accumulates:
            step: Any = make_gradient_step(model, plan)
        elif self._updates_in_order:
            step = make_updating_step(model, plan)
        else:
            step = make_step(model, plan.mode)

        def plain_update(
            state: State, gradients: Gradients, halted: jax.Array | None
        ) -> tuple[State, Tapped, jax.Array | None]:
            return apply_gradients(model, state, gradients), Tapped(), halted

        return jax.jit(lambda state, batch: (step(state, batch), Tapped())), plain_update

    def _traced(self, state: State) -> Any:
        """Traces the step that the programs run."""
        specs = (self._state if self._accumulates else state, batch_specs(self._plan, ()))
        if self._adds_in_order:
            return self._adding.trace(*specs, self._accumulated(), FACTOR)
        return self._step.trace(*specs)

    @cached_property
    def _adding(self) -> Any:
        step = make_accumulating_step(self._model, self._plan, self._accumulator)
        return jax.jit(lambda *arguments: (step(*arguments), Tapped()))

    def _accumulating_step(
        self, state: State, batch: ArrayTree, accumulated: Gradients, coefficient: Factor
    ) -> tuple[tuple[Gradients, State, ArrayTree], Tapped]:
        if self._adds_in_order:  # with the dtype that it was traced with
            factor = jnp.asarray(coefficient, FACTOR.dtype)
            return self._adding(state, batch, accumulated, factor)
        (gradients, state, logs), tapped = self._step(state, batch)
        return (self._accumulator.add(accumulated, gradients, coefficient), state, logs), tapped

    def _specs_of_update_taps(
        self, state: State, gradients: Sequence[jax.ShapeDtypeStruct]
    ) -> Tapped:
        if not self._accumulates:
            return Tapped()
        return jax.eval_shape(self._update, state, list(gradients), None)[1]

    def run(self, form: LoopForm) -> Program:
        """`count` steps as whole updates, which `form.unroll` counts."""
        update_steps = self._plan.accumulation.steps if self._accumulates else 1
        iteration = self._whole_update if self._accumulates else self._plain_step

        def run(
            state: State, batches: ArrayTree, start: jax.Array, count: jax.Array
        ) -> tuple[State, ArrayTree, Taps]:
            carry = LoopCarry(state, self._first_records(), self._empty_taps())
            data = BatchRange(batches, start)
            if self._plan.taps.stops and form.is_loop and can_wait(self._update_taps):
                carry = self._until_halted(carry, data, count // update_steps)
                return carry.state, self._result(carry.state, carry.records), carry.taps

            def body(update: Index, carry: LoopCarry) -> LoopCarry:
                return iteration(carry, data, update * update_steps, form)

            until = (lambda carry: carry.taps.halted) if self._plan.taps.stops else None
            carry = repeat(body, carry, count // update_steps, form, until)
            return carry.state, self._result(carry.state, carry.records), carry.taps

        specs = (self._state, self._batches, INDEX, INDEX)
        return self._program("run", run, specs, (0,), form.unroll, self._results(None, None))

    def accumulate(self, form: LoopForm) -> Program:
        """`count` micro-batches of an update, which `form.unroll` counts."""
        reduction = self._plan.accumulation.reduction

        def accumulate(
            state: State,
            accumulated: Gradients,
            batches: ArrayTree,
            start: jax.Array,
            count: jax.Array,
            coefficient: jax.Array,
        ) -> tuple[State, Gradients, ArrayTree, Taps]:
            def body(
                index: Index, carry: tuple[State, Gradients, ArrayTree, Taps]
            ) -> tuple[State, Gradients, ArrayTree, Taps]:
                state, accumulated, records, taps = carry
                batch = batch_at(batches, start + index)
                factor = coefficient_of(reduction, coefficient, index)
                result, tapped = self._accumulating_step(state, batch, accumulated, factor)
                accumulated, state, logs = result
                records = self._record(records, index, logs)
                return state, accumulated, records, taps.with_step(index, tapped)

            # Those of updates come from `apply`.
            empty = Taps(empty_entries(self._step_taps, self.max_tapped_steps or 0))
            carry = (state, accumulated, self._first_records(), empty)
            state, accumulated, records, taps = repeat(body, carry, count, form)
            return state, accumulated, self._result(state, records), taps

        specs = (self._state, self._accumulated(), self._batches, INDEX, INDEX, FACTOR)
        results = self._results(self._accumulated_results, None, None)
        return self._program("accumulate", accumulate, specs, (0, 1), form.unroll, results)

    def zeros(self) -> Program:
        """The initial accumulated gradients of an update."""
        accumulator = self._accumulator

        def zeros(state: State) -> Gradients:
            del state
            return accumulator.zeros()

        results = self._accumulated_results
        return self._program("zeros", zeros, (self._state,), (), results=results)

    def apply(self) -> Program:
        """The change of the weights, once all micro-batches of an update are accumulated."""
        accumulator = self._accumulator

        def apply(
            state: State, accumulated: Gradients, scale: jax.Array, steps: jax.Array
        ) -> tuple[State, Taps]:
            del steps
            state = fetched(state, self._host_layouts)
            new, tapped, halted = self._update(
                state, accumulator.finish(accumulated, scale), self._empty_taps().halted
            )
            entry = jax.tree.map(lambda leaf: leaf[None], tapped)
            new = offloaded(unless(halted, new, state), self._host_layouts)
            return new, Taps(updates=entry, halted=halted)

        specs = (self._state, self._accumulated(), FACTOR, INDEX)
        return self._program("apply", apply, specs, (0,), results=self._results(None))

    def _plain_step(
        self, carry: LoopCarry, data: BatchRange, index: Index, form: LoopForm
    ) -> LoopCarry:
        del form
        state = fetched(carry.state, self._host_layouts)
        (state, result), tapped = self._step(state, batch_at(data.batches, data.start + index))
        state = offloaded(state, self._host_layouts)
        records = self._record(carry.records, index, result)
        return LoopCarry(state, records, carry.taps.with_step(index, tapped))

    def _whole_update(
        self, carry: LoopCarry, data: BatchRange, index: Index, form: LoopForm
    ) -> LoopCarry:
        pending, records, taps = self._update_loop.gradients(carry, data, index, form)
        gradients, after = pending
        before = fetched_after(carry.state, self._host_layouts, list(gradients))
        state = before.with_changing(after)
        new, tapped, halted = self._update(state, gradients, taps.halted)
        steps = self._plan.accumulation.steps
        taps = taps.with_update(index // steps, tapped)._replace(halted=halted)
        new = offloaded(unless(halted, new, before), self._host_layouts)
        return LoopCarry(new, records, taps)

    def _until_halted(self, carry: LoopCarry, data: BatchRange, count: jax.Array) -> LoopCarry:
        loop, steps = LoopForm(unroll=None), self._plan.accumulation.steps

        def compute(number: jax.Array, carry: LoopCarry) -> Computed:
            return self._update_loop.gradients(carry, data, number * steps, loop)

        def apply(state: State, pending: PendingUpdate) -> State:
            gradients, after = pending
            state = fetched_after(state, self._host_layouts, list(gradients)).with_changing(after)
            return offloaded(apply_gradients(self._model, state, gradients), self._host_layouts)

        return run_until_halted(self._model, self._plan, count, compute, apply, carry)

    def _empty_taps(self) -> Taps:
        """Returns zeros for the taps of one call to fill."""
        plan, steps = self._plan, self.max_tapped_steps or 0
        updates = -(-steps // plan.accumulation.steps)
        return empty_taps(self._step_taps, steps, self._update_taps, updates, halts=plan.taps.stops)

    def _first_records(self) -> Any:
        if self._logs_at_end:
            return None
        lead = (self._plan.records,) if self._plan.each_step else ()
        return jax.tree.map(lambda s: jnp.zeros((*lead, *s.shape), s.dtype), self._step_result)

    def _record(self, records: ArrayTree, index: Index, result: ArrayTree) -> Any:
        if self._logs_at_end:
            return None
        if self._plan.each_step:
            return record_at(records, index, result)
        return jax.tree.map(lambda old, new: new.astype(old.dtype), records, result)

    def _result(self, state: State, records: ArrayTree) -> Any:
        if self._logs_at_end:
            return metric_logs(self._model, state.metric)
        if self._plan.mode is Mode.PREDICT and not self._plan.step_logs:
            return jax.tree.map(merge_steps, records)
        return records

    @property
    def _accumulated_results(self) -> Any:
        whole, host_layouts = self._plan.group.whole, self._accumulator_host_layouts
        return [layout or whole for layout in host_layouts] if any(host_layouts) else None

    def _accumulated(self) -> Any:
        return with_host_layouts(
            jax.eval_shape(self._accumulator.zeros), self._accumulator_host_layouts
        )

    def _program(
        self,
        name: str,
        function: Callable[..., Any],
        arguments: tuple[SpecTree, ...],
        donated: tuple[int, ...],
        unrolled: int | None = None,
        results: LayoutTree = None,
    ) -> Program:
        name = f"{self._plan.mode.value}_{name}"
        in_parts = self._plan.division.parts > 1 and not self.form.is_loop
        return Program(
            name, function, arguments, unrolled, donated, results, keeps_barriers=in_parts
        )

    def _results(self, *others: LayoutTree) -> Any:
        """Returns layouts of a state and other results, if any of them is in host memory.

        All results get a layout, or none: otherwise JAX might reuse the memory of an argument for
        a result of the other kind of memory.
        """
        whole = self._plan.group.whole
        host_layouts = jax.tree.leaves(self._host_layouts, is_leaf=_is_none)
        if not any(host_layouts) and not any(others):
            return None
        layouts = jax.tree.unflatten(
            jax.tree.structure(self._state), [k or whole for k in host_layouts]
        )
        return (layouts, *(each or whole for each in others))


def _is_none(value: object) -> bool:
    return value is None
