"""The micro-batches of one replica, for the programs of a model in one piece.

    gradients and update apart     several micro-batches in an update, taps, offload, recomputation
    a step that does both          all other training, evaluation, prediction

`programs/replicas/rounds.py` has the same for several replicas.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import keras

from millrace._compat.jaxpr import primitive_counts
from millrace._compat.keras_steps import metric_logs
from millrace.base.pytrees import ArrayTree
from millrace.programs.plan import LoopForm, Mode, Plan
from millrace.programs.recomputation.step import has_choice
from millrace.programs.replicas.reduce import GradientReduction
from millrace.programs.steps.accumulate import (
    Accumulator,
    Factor,
    Gradients,
    accumulated_variables,
    coefficient_of,
    make_accumulator,
    scale_of,
    weighed,
)
from millrace.programs.steps.loop import BatchRange, Computed, LoopCarry, batch_at
from millrace.programs.steps.offload import (
    fetched,
    host_layouts_of_state,
    offloaded,
    offloaded_accumulator,
    with_host_layouts,
)
from millrace.programs.steps.own_step import own_step
from millrace.programs.steps.program import FACTOR, batch_specs, merge_steps
from millrace.programs.steps.repetition import Index, repeat
from millrace.programs.steps.state import State
from millrace.programs.steps.step import (
    PendingUpdate,
    logs_follow_from_metrics,
    make_accumulating_step,
    make_gradient_step,
    make_step,
    make_updating_step,
)
from millrace.programs.steps.tapped_step import make_tapped_step
from millrace.programs.taps.entries import empty_entries, record_at
from millrace.programs.taps.taps import Tapped, collection_open


class OneReplica:
    """Runs the micro-batches of a model within a program."""

    tap_layout = None

    def __init__(self, model: keras.Model, plan: Plan, state: State):
        """Traces one step.

        Args:
            model: a compiled Keras model.
            plan: describes the programs.
            state: specs of the state, as trees of `jax.ShapeDtypeStruct`.
        """
        self._model, self._plan = model, plan
        self.layouts = host_layouts_of_state(plan, state)
        self.state = with_host_layouts(state, self.layouts)
        self.batches = batch_specs(plan.batch, plan.capacity)
        trains = plan.mode is Mode.TRAIN
        # Offloaded values are fetched between gradients and update, so the step is divided there.
        fetches = bool(jax.tree.leaves(self.layouts))
        steps, in_parts = plan.accumulation.steps, plan.division.parts > 1
        is_apart = steps > 1 or in_parts or plan.tapped or plan.recompute is not None or fetches
        is_apart = trains and is_apart
        own = own_step(model, plan, state) if is_apart else None
        self._turns = 1 if own is None else own.turns
        # In the order of a step a gradient is used once it is there: for the update, or for a sum.
        shows = own is not None and (own.turns > 1 or own.shows_gradients or plan.weighs_losses)
        in_order = trains and has_choice(plan) and not (plan.tapped or in_parts or shows)
        self._updates_in_order = in_order and steps == 1 and not fetches
        self._adds_in_order = in_order and steps > 1 and not any(self._reduction.host_layouts)
        self.gives_gradients = is_apart and not self._updates_in_order
        self._step = self._make_step()
        gradients = [_spec(v) for v in state.trainable] if self._turns > 1 else []
        # Specs of the gradients of the turns before the last; see `OwnStep`.
        self.earlier = (gradients,) * (self._turns - 1)
        with collection_open(keeps=False) as tapped:
            traced = self._traced(state)
        # Whether the model taps values itself, which are carried out only if the plan says so.
        self.taps_values = bool(tapped)
        result, self.step_taps = traced.out_info
        self._result = result[-1]
        # Specs, where gradients and update are apart.
        count = len(state.trainable)
        self.gradients: list[Any] = list(result[0])[:count] if self.gives_gradients else []
        # Then a loop carries no logs from step to step.
        self._logs_at_end = not plan.each_step and logs_follow_from_metrics(model, plan.mode)
        self.primitives = primitive_counts(traced.jaxpr.jaxpr.eqns)

    @property
    def accumulated(self) -> list[Any]:
        """Specs of the accumulated gradients of an update."""
        return self._reduction.sums

    @cached_property
    def _reduction(self) -> GradientReduction:
        return GradientReduction(accumulated_variables(self._model, self._plan), self._plan)

    @cached_property
    def _accumulator(self) -> Accumulator:
        variables = accumulated_variables(self._model, self._plan)
        accumulator = make_accumulator(variables, self._plan.accumulation)
        return offloaded_accumulator(accumulator, self._reduction.host_layouts)

    def _make_step(self) -> Any:
        """Returns the step with its taps, if any."""
        model, plan = self._model, self._plan
        if plan.tapped:
            return jax.jit(make_tapped_step(model, plan))
        if self.gives_gradients:
            step: Any = make_gradient_step(model, plan)
        elif self._updates_in_order:
            step = make_updating_step(model, plan)
        else:
            step = make_step(model, plan.mode)
        return jax.jit(lambda *arguments: (step(*arguments), Tapped()))

    def _traced(self, state: State) -> Any:
        """Traces the step that the programs run."""
        specs = (self.state if self.gives_gradients else state, batch_specs(self._plan.batch))
        if self._adds_in_order:
            return self._adding.trace(*specs, self.accumulated, FACTOR)
        return self._step.trace(*specs, self.earlier) if self.earlier else self._step.trace(*specs)

    @cached_property
    def _adding(self) -> Any:
        accumulator = make_accumulator(self._model.trainable_variables, self._plan.accumulation)
        step = make_accumulating_step(self._model, self._plan, accumulator)
        return jax.jit(lambda *arguments: (step(*arguments), Tapped()))

    def _accumulating_step(
        self,
        state: State,
        batch: ArrayTree,
        accumulated: Gradients,
        coefficient: Factor,
        earlier: Sequence[Gradients],
    ) -> tuple[tuple[Gradients, State, ArrayTree], Tapped]:
        if self._adds_in_order:  # with the dtype that it was traced with
            factor = jnp.asarray(coefficient, FACTOR.dtype)
            return self._adding(state, batch, accumulated, factor)
        arguments = (state, batch, earlier) if earlier else (state, batch)
        (gradients, state, logs), tapped = self._step(*arguments)
        gradients, coefficient = weighed(self._plan, gradients, coefficient)
        return (self._accumulator.add(accumulated, gradients, coefficient), state, logs), tapped

    def first_records(self) -> Any:
        """Returns empty logs or outputs for the steps of a call to fill."""
        if self._logs_at_end:
            return None
        lead = (self._plan.records,) if self._plan.each_step else ()
        return jax.tree.map(lambda s: jnp.zeros((*lead, *s.shape), s.dtype), self._result)

    def first_taps(self, steps: int) -> Tapped:
        """Returns empty taps for at most so many steps of a call."""
        return empty_entries(self.step_taps, steps)

    def of_update(
        self, before: LoopCarry, data: BatchRange, number: Index, form: LoopForm
    ) -> Computed:
        """Returns an update to apply, and the records and taps after its micro-batches.

        Args:
            before: state, records and taps that the update begins with.
            data: batches of the call.
            number: index of the update in the call.
            form: of the loop over micro-batches; unrolled code has as many as the update.
        """
        accumulation = self._plan.accumulation
        steps, reduction = accumulation.steps, accumulation.reduction
        index = number * steps
        if steps == 1 and self._turns == 1:  # nothing to add up
            batch = batch_at(data.batches, data.start + index)
            (gradients, new, logs), tapped = self._step(before.state, batch)
            records = self._record(before.records, index, logs)
            pending = PendingUpdate(list(gradients), new.changing())
            return pending, records, before.taps.with_step(index, tapped)
        inner = form if form.is_loop else LoopForm(unroll=steps)
        base, carry = 0.0 if reduction.is_running else 1.0, before
        found: list[Gradients] = []
        for _ in range(self._turns):
            zeros, earlier = self._accumulator.zeros(), tuple(found)
            sums, carry = self._micro_batches(
                before, zeros, data, index, steps, base, inner, earlier
            )
            found.append(self._accumulator.finish(sums, scale_of(reduction, steps, 1)))
        *earlier, gradients = found
        pending = PendingUpdate(gradients, carry.state.changing(), tuple(earlier))
        return pending, carry.records, carry.taps

    def without_update(
        self, carry: LoopCarry, data: BatchRange, count: jax.Array, form: LoopForm
    ) -> LoopCarry:
        """Runs steps of evaluation or prediction, or of training that change the weights."""

        def body(index: Index, carry: LoopCarry) -> LoopCarry:
            state = fetched(carry.state, self.layouts)
            (state, result), tapped = self._step(state, batch_at(data.batches, data.start + index))
            records = self._record(carry.records, index, result)
            return LoopCarry(self.laid_out(state), records, carry.taps.with_step(index, tapped))

        return repeat(body, carry, count, form)

    def zeros(self, state: State) -> Gradients:
        """Returns the initial accumulated gradients of an update."""
        del state
        return self._accumulator.zeros()

    def some(
        self,
        carry: LoopCarry,
        accumulated: Gradients,
        data: BatchRange,
        count: jax.Array,
        coefficient: jax.Array,
        form: LoopForm,
    ) -> tuple[Gradients, LoopCarry]:
        """Runs any number of micro-batches of an update.

        Args:
            carry: state, records and taps before them.
            accumulated: gradients of the update so far, from `zeros`.
            data: batches of the call.
            count: number of micro-batches.
            coefficient: weight of a micro-batch; of a running mean, the steps before the call.
            form: of the loop over micro-batches.

        Returns:
            The accumulated gradients, and the carry after the micro-batches.
        """
        return self._micro_batches(carry, accumulated, data, 0, count, coefficient, form)

    def _micro_batches(
        self,
        before: LoopCarry,
        accumulated: Gradients,
        data: BatchRange,
        first: Index,
        count: Index,
        base: Factor,
        form: LoopForm,
        earlier: tuple[Gradients, ...] = (),
    ) -> tuple[Gradients, LoopCarry]:
        """Adds the gradients of micro-batches, of which `first` is the index in the call.

        Those of a turn before the last have no records and taps.
        """
        reduction = self._plan.accumulation.reduction
        is_last = len(earlier) == self._turns - 1

        def body(number: Index, values: tuple[Gradients, LoopCarry]) -> tuple[Gradients, LoopCarry]:
            accumulated, (after, records, taps) = values
            state, index = before.state.with_changing(after), first + number
            batch = batch_at(data.batches, data.start + index)
            factor = coefficient_of(reduction, base, number)
            result, tapped = self._accumulating_step(state, batch, accumulated, factor, earlier)
            accumulated, new, logs = result
            if not is_last:
                return accumulated, LoopCarry(new.changing(), records, taps)
            records = self._record(records, index, logs)
            return accumulated, LoopCarry(new.changing(), records, taps.with_step(index, tapped))

        # Weights and optimizer state stay the same within an update, so no loop carries them.
        carry = before._replace(state=before.state.changing())
        accumulated, carry = repeat(body, (accumulated, carry), count, form)
        return accumulated, carry._replace(state=before.state.with_changing(carry.state))

    def close(
        self, state: State, accumulated: Gradients, scale: Factor, steps: Index
    ) -> tuple[Gradients, State]:
        """Returns the gradients of an update, and the state after it."""
        del steps
        return self._accumulator.finish(accumulated, scale), state

    def ended(self, state: State) -> State:
        """Returns the state at the end of a call."""
        return state

    def result(self, state: State, records: ArrayTree) -> Any:
        """Returns the result of a call: logs or outputs, of every step or of the last one."""
        if self._logs_at_end:
            return metric_logs(self._model, state.metric)
        if self._plan.mode is Mode.PREDICT and not self._plan.step_logs:
            return jax.tree.map(merge_steps, records)
        return records

    def laid_out(self, state: State) -> State:
        """Moves the values that rest in host memory there."""
        return offloaded(state, self.layouts)

    def _record(self, records: ArrayTree, index: Index, result: ArrayTree) -> Any:
        if self._logs_at_end:
            return None
        if self._plan.each_step:
            return record_at(records, index, result)
        return jax.tree.map(lambda old, new: new.astype(old.dtype), records, result)


def _spec(value: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(value.shape, value.dtype)
