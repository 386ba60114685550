"""Plan -> programs.

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
from collections.abc import Callable
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import keras

from millrace._compat.jaxpr import primitive_counts
from millrace.plan import LoopForm, Mode, Plan, choose_loop_form
from millrace.steps.accumulate import Accumulator, coefficient_of, make_accumulator
from millrace.steps.halting import can_wait, run_until_halted, unless
from millrace.steps.loop import UpdateLoop, batch_at, repeat
from millrace.steps.offload import (
    fetched,
    fetched_after,
    host_layout,
    host_layouts_of_state,
    offloaded,
    offloaded_accumulator,
    with_host_layouts,
)
from millrace.steps.program import FACTOR, INDEX, Program, batch_specs, merge_steps
from millrace.steps.state import State
from millrace.steps.step import final_logs, logs_follow_from_metrics, make_gradient_step, make_step
from millrace.steps.tapped_step import make_tapped_step, make_tapped_update
from millrace.steps.update import apply_gradients
from millrace.taps.entries import Taps, record_at, room, steps_in_room
from millrace.taps.taps import Tapped, collection_open

LoopCarry = tuple[State, Any, Taps]  # state, logs or outputs so far, taps so far


class ProgramBuilder:
    """Makes the programs of one plan. The step is traced once, however many are made of it."""

    def __init__(self, model: keras.Model, plan: Plan, state: State):
        """Traces one step.

        Args:
            model: a compiled Keras model.
            plan: what the programs are to do.
            state: specs of the state, as trees of `jax.ShapeDtypeStruct`.
        """
        self._model = model
        self._plan = plan
        self._host_layouts = host_layouts_of_state(plan, state)
        self._state = with_host_layouts(state, self._host_layouts)
        self._batches = batch_specs(plan, (plan.capacity,))
        trains = plan.mode is Mode.TRAIN
        # What is offloaded is fetched between gradients and update, so these are apart;
        # a `train_step` of the user's own has both, and begins with all of the state.
        is_own = type(model).train_step is not keras.Model.train_step  # type: ignore[attr-defined]
        fetches = not is_own and bool(jax.tree.leaves(self._host_layouts))
        self._accumulates = trains and (
            plan.accumulation.steps > 1 or plan.tapped or plan.recompute is not None or fetches
        )
        self._step, self._update = self._functions()
        self._update_loop = UpdateLoop(self._step, self._record, lambda: self._accumulator, plan)
        begin = time.perf_counter()
        with collection_open(keeps=False) as found:
            given = self._state if self._accumulates else state
            traced = self._step.trace(given, batch_specs(plan, ()))
        # Whether the model taps values of its own, which only a plan that is told so carries out.
        self.taps_found = bool(found)
        self.trace_seconds = time.perf_counter() - begin
        result, self._step_taps = traced.out_info
        self._step_result = result[-1]
        self._update_taps = (
            self._specs_of_update_taps(state, result[0]) if plan.tapped else Tapped()
        )
        # Steps of a call whose taps fit into its results; any number, where there are none.
        update_steps = plan.accumulation.steps if trains else 1
        self.tap_room = (
            steps_in_room(self._step_taps, plan.records, update_steps) if plan.tapped else None
        )
        # What a loop must carry from step to step besides state.
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
        """Returns the step and the update; each with taps, which are none in a plain plan."""
        model, plan = self._model, self._plan
        if plan.tapped:
            return jax.jit(make_tapped_step(model, plan)), make_tapped_update(model, plan)
        step = make_gradient_step(model, plan) if self._accumulates else make_step(model, plan.mode)

        def plain_update(state: State, gradients: Any, halted: Any) -> Any:
            return apply_gradients(model, state, gradients), Tapped(), halted

        return jax.jit(lambda state, batch: (step(state, batch), Tapped())), plain_update

    def _specs_of_update_taps(self, state: State, gradients: Any) -> Tapped:
        if not self._accumulates:
            return Tapped()
        return jax.eval_shape(self._update, state, list(gradients), None)[1]

    def run(self, form: LoopForm) -> Program:
        """`count` steps as whole updates. Unrolled, the form counts updates."""
        update_steps = self._plan.accumulation.steps if self._accumulates else 1
        turn = self._whole_update if self._accumulates else self._plain_step

        def run(state: State, batches: Any, start: Any, count: Any) -> tuple[State, Any, Taps]:
            carry = (state, self._first_records(), self._room())
            if self._plan.taps.stops and form.is_loop and can_wait(self._update_taps):
                state, records, taps = self._until_halted(
                    carry, batches, start, count // update_steps
                )
                return state, self._result(state, records), taps

            def body(update: Any, carry: LoopCarry) -> LoopCarry:
                return turn(carry, batches, start, update * update_steps, form)

            until = (lambda carry: carry[2].halted) if self._plan.taps.stops else None
            state, records, taps = repeat(body, carry, count // update_steps, form, until)
            return state, self._result(state, records), taps

        specs = (self._state, self._batches, INDEX, INDEX)
        return self._program("run", run, specs, (0,), form.unroll, self._results(None, None))

    def accumulate(self, form: LoopForm) -> Program:
        """`count` micro-batches of an update. Unrolled, the form counts micro-batches."""
        accumulator, reduction = self._accumulator, self._plan.accumulation.reduction

        def accumulate(
            state: State, accumulated: Any, batches: Any, start: Any, count: Any, coefficient: Any
        ) -> tuple[State, Any, Any, Taps]:
            def body(index: Any, carry: Any) -> Any:
                state, accumulated, records, taps = carry
                result, tapped = self._step(state, batch_at(batches, start + index))
                gradients, state, logs = result
                factor = coefficient_of(reduction, coefficient, index)
                accumulated = accumulator.add(accumulated, gradients, factor)
                records = self._record(records, index, logs)
                return state, accumulated, records, taps.with_step(index, tapped)

            carry = (state, accumulated, self._first_records(), self._room())
            state, accumulated, records, taps = repeat(body, carry, count, form)
            return state, accumulated, self._result(state, records), taps

        specs = (self._state, self._accumulated(), self._batches, INDEX, INDEX, FACTOR)
        results = self._results(self._accumulated_results, None, None)
        return self._program("accumulate", accumulate, specs, (0, 1), form.unroll, results)

    def zeros(self) -> Program:
        """What an update accumulates into."""
        accumulator = self._accumulator

        def zeros(state: State) -> Any:
            del state
            return accumulator.zeros()

        results = self._accumulated_results
        return self._program("zeros", zeros, (self._state,), (), results=results)

    def apply(self) -> Program:
        """The update at the end of an update."""
        accumulator = self._accumulator

        def apply(state: State, accumulated: Any, scale: Any, steps: Any) -> tuple[State, Taps]:
            del steps
            state = fetched(state, self._host_layouts)
            new, tapped, halted = self._update(
                state, accumulator.finish(accumulated, scale), self._room().halted
            )
            entry = jax.tree.map(lambda leaf: leaf[None], tapped)
            new = offloaded(unless(halted, new, state), self._host_layouts)
            return new, Taps(updates=entry, halted=halted)

        specs = (self._state, self._accumulated(), FACTOR, INDEX)
        return self._program("apply", apply, specs, (0,), results=self._results(None))

    def _plain_step(
        self, carry: LoopCarry, batches: Any, start: Any, index: Any, form: LoopForm
    ) -> LoopCarry:
        del form
        state, records, taps = carry
        state = fetched(state, self._host_layouts)
        (state, result), tapped = self._step(state, batch_at(batches, start + index))
        state = offloaded(state, self._host_layouts)
        return state, self._record(records, index, result), taps.with_step(index, tapped)

    def _whole_update(
        self, carry: LoopCarry, batches: Any, start: Any, index: Any, form: LoopForm
    ) -> LoopCarry:
        before, records, taps = carry
        gradients, after, records, taps = self._update_loop.gradients(
            before, records, taps, batches, start, index, form
        )
        before = fetched_after(before, self._host_layouts, list(gradients))
        new, tapped, halted = self._update(after.put_into(before), gradients, taps.halted)
        steps = self._plan.accumulation.steps
        taps = taps.with_update(index // steps, tapped)._replace(halted=halted)
        return offloaded(unless(halted, new, before), self._host_layouts), records, taps

    def _until_halted(self, carry: LoopCarry, batches: Any, start: Any, count: Any) -> LoopCarry:
        loop, steps = LoopForm(unroll=None), self._plan.accumulation.steps

        def compute(number: Any, state: State, records: Any, taps: Taps) -> Any:
            gradients, after, records, taps = self._update_loop.gradients(
                state, records, taps, batches, start, number * steps, loop
            )
            return (gradients, after), records, taps

        def apply(state: State, pending: Any) -> State:
            gradients, after = pending
            state = after.put_into(fetched_after(state, self._host_layouts, list(gradients)))
            return offloaded(apply_gradients(self._model, state, gradients), self._host_layouts)

        return run_until_halted(self._model, self._plan, count, compute, apply, carry)

    def _room(self) -> Taps:
        """Returns room for the taps of one call."""
        plan, steps = self._plan, self.tap_room or 0
        updates = -(-steps // plan.accumulation.steps)
        return room(self._step_taps, steps, self._update_taps, updates, halts=plan.taps.stops)

    def _first_records(self) -> Any:
        if self._logs_at_end:
            return None
        lead = (self._plan.records,) if self._plan.each_step else ()
        return jax.tree.map(lambda s: jnp.zeros((*lead, *s.shape), s.dtype), self._step_result)

    def _record(self, records: Any, index: Any, result: Any) -> Any:
        if self._logs_at_end:
            return None
        if self._plan.each_step:
            return record_at(records, index, result)
        return jax.tree.map(lambda old, new: new.astype(old.dtype), records, result)

    def _result(self, state: State, records: Any) -> Any:
        if self._logs_at_end:
            return final_logs(self._model, state)
        if self._plan.mode is Mode.PREDICT and not self._plan.step_logs:
            return jax.tree.map(merge_steps, records)
        return records

    @property
    def _accumulated_results(self) -> Any:
        whole, host_layouts = self._plan.group.whole, self._accumulator_host_layouts
        return [rest or whole for rest in host_layouts] if any(host_layouts) else None

    def _accumulated(self) -> Any:
        return with_host_layouts(
            jax.eval_shape(self._accumulator.zeros), self._accumulator_host_layouts
        )

    def _program(
        self,
        name: str,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        donated: tuple[int, ...],
        unrolled: int | None = None,
        results: Any = None,
    ) -> Program:
        name = f"{self._plan.mode.value}_{name}"
        return Program(name, function, arguments, unrolled, donated, results)

    def _results(self, *others: Any) -> Any:
        """Returns shardings of a state and other results, if any of them is in host memory.

        All are said, or none: JAX would give results the memory of arguments of another kind.
        """
        whole = self._plan.group.whole
        host_layouts = jax.tree.leaves(self._host_layouts, is_leaf=_is_none)
        if not any(host_layouts) and not any(others):
            return None
        layouts = jax.tree.unflatten(
            jax.tree.structure(self._state), [k or whole for k in host_layouts]
        )
        return (layouts, *(each or whole for each in others))


def _is_none(value: Any) -> bool:
    return value is None
