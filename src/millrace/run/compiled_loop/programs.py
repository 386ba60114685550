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

    run     weights ---------------------------------+
            batches                                  |
              |  gradients of the micro-batches, in a loop: of one replica, or of all, added up
              v                                      v
            gradients, state  ------------------>  update  -> weights

`OneReplica` and `Rounds` have the first part, in the same form; the update is the same for both.
"""

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import keras

from millrace.base.pytrees import ArrayTree, LayoutTree, SpecTree
from millrace.programs.plan import LoopForm, Plan, choose_loop_form
from millrace.programs.replicas.rounds import Rounds
from millrace.programs.steps.loop import (
    BatchRange,
    Computed,
    LoopCarry,
    can_wait,
    run_until_halted,
    unless,
)
from millrace.programs.steps.loss_weights import weighed_by_loss
from millrace.programs.steps.offload import fetched, fetched_after
from millrace.programs.steps.own_step import check_whole
from millrace.programs.steps.program import FACTOR, INDEX, Program
from millrace.programs.steps.repetition import Index, repeat
from millrace.programs.steps.state import State
from millrace.programs.steps.step import PendingUpdate, apply_gradients
from millrace.programs.steps.tapped_step import make_tapped_update
from millrace.programs.taps.entries import Taps, empty_entries, max_tapped_steps
from millrace.programs.taps.taps import Tapped
from millrace.run.compiled_loop.one_replica import OneReplica


class ProgramBuilder:
    """Makes the programs of one plan. The step is traced once, however many are made of it."""

    def __init__(self, model: keras.Model, plan: Plan, state: State):
        """Traces the step of one replica.

        Args:
            model: a compiled Keras model.
            plan: describes the programs.
            state: specs of the state in the form that programs take.
        """
        self._model, self._plan = model, plan
        begin = time.perf_counter()
        make = OneReplica if plan.replicas == 1 else Rounds
        self._steps: OneReplica | Rounds = weighed_by_loss(
            model, plan, lambda plan: make(model, plan, state)
        )
        self.trace_seconds = time.perf_counter() - begin
        self.taps_values = self._steps.taps_values
        self.form = choose_loop_form(plan.mode, plan.group.platform, self._steps.primitives)
        self._update: Any = make_tapped_update(model, plan) if plan.tapped else self._plain_update
        self._update_taps = self._specs_of_update_taps()
        # Most steps of a call whose taps fit into its results; None where nothing is tapped.
        step_taps, update_steps = self._steps.step_taps, plan.update_steps
        self.max_tapped_steps = (
            max_tapped_steps(step_taps, self._update_taps, plan.records, update_steps)
            if plan.tapped
            else None
        )

    def run(self, form: LoopForm) -> Program:
        """`count` steps as whole updates or rounds, which `form.unroll` counts."""
        steps = self._steps
        loop = self._updates if steps.gives_gradients else steps.without_update

        def run(
            state: State, batches: ArrayTree, start: jax.Array, count: jax.Array
        ) -> tuple[State, ArrayTree, Taps]:
            carry = LoopCarry(state, steps.first_records(), self._empty_taps())
            carry = loop(carry, BatchRange(batches, start), count, form)
            state = steps.ended(carry.state)
            return state, steps.result(state, carry.records), carry.taps

        specs, results = (steps.state, steps.batches, INDEX, INDEX), (None, steps.tap_layout)
        return self._program("run", run, specs, (0,), self._results(*results))

    def accumulate(self, form: LoopForm) -> Program:
        """`count` micro-batches of an update, or rounds of them, which `form.unroll` counts.

        Raises:
            ModelError: for a `train_step` that takes gradients in turn.
        """
        steps = self._steps
        check_whole(self._model, len(steps.earlier) + 1, self._plan)

        def accumulate(
            state: State,
            accumulated: list[jax.Array],
            batches: ArrayTree,
            start: jax.Array,
            count: jax.Array,
            coefficient: jax.Array,
        ) -> tuple[State, list[jax.Array], ArrayTree, Taps]:
            # The taps of updates come from `apply`.
            taps = Taps(steps.first_taps(self.max_tapped_steps or 0))
            carry, data = LoopCarry(state, steps.first_records(), taps), BatchRange(batches, start)
            accumulated, carry = steps.some(carry, accumulated, data, count, coefficient, form)
            state = steps.ended(carry.state)
            return state, accumulated, steps.result(state, carry.records), carry.taps

        specs = (steps.state, steps.accumulated, steps.batches, INDEX, INDEX, FACTOR)
        results = self._results(self._accumulated_layouts, None, steps.tap_layout)
        return self._program("accumulate", accumulate, specs, (0, 1), results)

    def zeros(self) -> Program:
        """The initial accumulated gradients of an update."""
        results = self._accumulated_layouts
        return self._program("zeros", self._steps.zeros, (self._steps.state,), (), results)

    def apply(self) -> Program:
        """The change of the weights, once all micro-batches of an update are accumulated."""
        steps = self._steps

        def apply(
            state: State, accumulated: list[jax.Array], scale: jax.Array, count: jax.Array
        ) -> tuple[State, Taps]:
            state = fetched(state, steps.layouts)
            gradients, state = steps.close(state, accumulated, scale, count)
            update = PendingUpdate(gradients)
            new, tapped, halted = self._update(state, update, self._empty_taps().halted)
            entry = jax.tree.map(lambda leaf: leaf[None], tapped)
            new = steps.laid_out(unless(halted, new, state))
            return new, Taps(updates=entry, halted=halted)

        specs = (steps.state, steps.accumulated, FACTOR, INDEX)
        return self._program("apply", apply, specs, (0,), self._results(steps.tap_layout))

    def _updates(
        self, carry: LoopCarry, data: BatchRange, count: jax.Array, form: LoopForm
    ) -> LoopCarry:
        """Runs whole updates."""
        steps, stops = self._steps, self._plan.taps.stops
        layouts, updates = steps.layouts, count // self._plan.update_steps

        def with_weights(carry: LoopCarry) -> LoopCarry:
            weights = fetched(carry.state.trainable, layouts.trainable)
            return carry._replace(state=carry.state._replace(trainable=weights))

        def compute(number: Index, carry: LoopCarry) -> Computed:
            return steps.of_update(with_weights(carry), data, number, form)

        def apply(state: State, pending: PendingUpdate) -> State:
            state = fetched_after(state, layouts, list(pending.gradients))
            state = state.with_changing(pending.after)
            return steps.laid_out(apply_gradients(self._model, self._plan, state, pending))

        def body(number: Index, carry: LoopCarry) -> LoopCarry:
            carry = with_weights(carry)
            update, records, taps = steps.of_update(carry, data, number, form)
            gradients = list(update.gradients)
            slots = fetched_after(carry.state.optimizer, layouts.optimizer, gradients)
            before = carry.state._replace(optimizer=slots)
            state = before.with_changing(update.after)
            new, tapped, halted = self._update(state, update, taps.halted)
            taps = taps.with_update(number, tapped)._replace(halted=halted)
            return LoopCarry(steps.laid_out(unless(halted, new, before)), records, taps)

        if stops and form.is_loop and can_wait(self._update_taps):
            return run_until_halted(self._model, self._plan, updates, compute, apply, carry)
        until = (lambda carry: carry.taps.halted) if stops else None
        return repeat(body, carry, updates, form, until)

    def _plain_update(
        self, state: State, update: PendingUpdate, halted: jax.Array | None
    ) -> tuple[State, Tapped, jax.Array | None]:
        return apply_gradients(self._model, self._plan, state, update), Tapped(), halted

    def _specs_of_update_taps(self) -> Tapped:
        steps = self._steps
        if not (self._plan.tapped and steps.gives_gradients):
            return Tapped()
        state = jax.tree.map(lambda s: jax.ShapeDtypeStruct(s.shape, s.dtype), steps.state)
        update = PendingUpdate(steps.gradients, earlier=steps.earlier)
        return jax.eval_shape(self._update, state, update, None)[1]

    def _empty_taps(self) -> Taps:
        """Returns zeros for the taps of one call to fill."""
        plan, most = self._plan, self.max_tapped_steps or 0
        updates = empty_entries(self._update_taps, -(-most // plan.update_steps))
        halted = jnp.bool_(False) if plan.taps.stops else None
        return Taps(self._steps.first_taps(most), updates, halted)

    def _program(
        self,
        name: str,
        function: Callable[..., Any],
        arguments: tuple[SpecTree, ...],
        donated: tuple[int, ...],
        results: "LayoutTree | tuple[LayoutTree | Taps, ...]",
    ) -> Program:
        name = f"{self._plan.mode.value}_{name}"
        in_parts = self._plan.division.parts > 1 and not self.form.is_loop
        return Program(name, function, arguments, donated, results, keeps_barriers=in_parts)

    @property
    def _accumulated_layouts(self) -> Any:
        layouts = [spec.sharding for spec in self._steps.accumulated]
        return [each or self._plan.group.whole for each in layouts] if any(layouts) else None

    def _results(self, *others: Any) -> Any:
        """Returns layouts of a state and other results; None where all are on one device.

        All results get a layout, or none: otherwise JAX might reuse the memory of an argument for
        a result of the other kind of memory.
        """
        state, whole = self._steps.state, self._plan.group.whole
        layouts = jax.tree.leaves(self._steps.layouts, is_leaf=_is_none)
        if not any(layouts) and not any(others):
            return None
        layouts = jax.tree.unflatten(jax.tree.structure(state), [k or whole for k in layouts])
        return (layouts, *(each or whole for each in others))


def _is_none(value: object) -> bool:
    return value is None
