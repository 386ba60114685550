"""Plan -> programs of a model in one piece, for several replicas: those of `compiled_loop`.

    run          weights ---------------------------------------+
                 batches [rounds, replicas, ...]                |
                   |  each replica: forward and backward of its micro-batches, in a loop
                   v                                            v
                 gradients, added up once over replicas ->  update  -> weights

Code under the mesh's axis is written for one replica (`rounds.py`). All other code, the update
included, sees whole values, and XLA divides the work as their layouts say. `start` and `count` are
steps, of which a round takes one for each replica.
"""

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import keras
from jax import lax

from millrace._compat.jax_memory import is_on_host
from millrace.base.pytrees import ArrayTree, LayoutTree, SpecTree
from millrace.programs.plan import LoopForm, Mode, Plan, choose_loop_form
from millrace.programs.replicas.logs import ReplicaLogs, ReplicaRecords
from millrace.programs.replicas.placement import layouts, specs_of
from millrace.programs.replicas.reduce import GradientReduction
from millrace.programs.replicas.rounds import Rounds, StepRange
from millrace.programs.replicas.state_rules import TracedStep
from millrace.programs.replicas.transform import OWN, specs_on
from millrace.programs.steps.accumulate import make_accumulator, scale_of
from millrace.programs.steps.loop import (
    Computed,
    LoopCarry,
    PendingUpdate,
    can_wait,
    run_until_halted,
    unless,
)
from millrace.programs.steps.offload import fetched, fetched_after, offloaded
from millrace.programs.steps.program import FACTOR, INDEX, Program, batch_specs
from millrace.programs.steps.repetition import Index, repeat
from millrace.programs.steps.state import State
from millrace.programs.steps.step import apply_gradients
from millrace.programs.steps.tapped_step import make_tapped_update
from millrace.programs.taps.entries import Taps, empty_taps, max_tapped_steps
from millrace.programs.taps.taps import Tapped


class ReplicaProgramBuilder:
    """Makes the programs of one plan. The step is traced once, however many are made of it."""

    def __init__(self, model: keras.Model, plan: Plan, state: State):
        """Traces the step of one replica.

        Args:
            model: a compiled Keras model.
            plan: describes the programs.
            state: specs of the state in the form that programs take.
        """
        self._model, self._plan = model, plan
        self._trains = plan.mode is Mode.TRAIN
        self._state, self._layouts = specs_of(plan, state), layouts(plan, state)
        rounds = plan.capacity // plan.replicas
        self._batches = jax.tree.map(
            lambda s: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=plan.group.split(1)),
            batch_specs(plan, (rounds, plan.replicas)),
        )
        begin = time.perf_counter()
        step = TracedStep(model, plan, state._replace(metric_parts=()))
        self.trace_seconds = time.perf_counter() - begin
        self.form = choose_loop_form(plan.mode, plan.group.platform, step.primitives)
        variables = model.trainable_variables if self._trains else []
        self._accumulator = make_accumulator(variables, plan.accumulation)
        self._reduction = GradientReduction(variables, plan)
        self.taps_values = step.taps_values
        # Most steps of a call whose taps fit into its results; None where nothing is tapped.
        self._update = make_tapped_update(model, plan)
        self._update_taps = self._specs_of_update_taps() if plan.tapped and self._trains else None
        update_taps, update_steps = self._update_taps or Tapped(), plan.update_steps
        self.max_tapped_steps = (
            max_tapped_steps(step.tapped, update_taps, plan.records, update_steps)
            if plan.tapped
            else None
        )
        tapped_rounds = (self.max_tapped_steps or 0) // plan.replicas
        self._records = ReplicaRecords(
            ReplicaLogs(model, plan, step.result), step.tapped, tapped_rounds, plan.replicas
        )
        self._rounds = Rounds(model, plan, step, self._records, self._reduction)
        # Every process needs the taps of all replicas; a process on its own leaves them split.
        group = plan.group
        step_taps = group.split(1) if group.is_local else group.whole
        self._tap_layout: Any = Taps(step_taps, group.whole, group.whole)  # type: ignore[arg-type]

    def run(self, form: LoopForm) -> Program:
        """`count` steps as whole updates or rounds, which `form.unroll` counts."""
        function = self._updates(form) if self._trains else self._evaluation(form)
        specs = (self._state, self._batches, INDEX, INDEX)
        results = (self._layouts, self._plan.group.whole, self._tap_layout)
        return self._program("run", function, specs, (0,), results, form.unroll)

    def accumulate(self, form: LoopForm) -> Program:
        """`count` micro-batches of an update, in rounds, which `form.unroll` counts."""

        def accumulate(
            state: State,
            accumulated: list[jax.Array],
            batches: ArrayTree,
            start: jax.Array,
            count: jax.Array,
            coefficient: jax.Array,
        ) -> tuple[State, list[jax.Array], ArrayTree, Taps]:
            accumulated, new, records = self._rounds.some(
                form,
                self._with_weights(state),
                fetched(accumulated, host_layouts),
                self._records.first(),
                StepRange(batches, start, count, coefficient),
            )
            new = self._rounds.with_metric_sums(new._replace(trainable=state.trainable))
            result, tapped = self._records.result(new, records)
            return new, offloaded(accumulated, host_layouts), result, Taps(tapped)

        sums, group = self._accumulated(), self._plan.group
        host_layouts = [spec.sharding for spec in sums]
        specs = (self._state, sums, self._batches, INDEX, INDEX, FACTOR)
        results = (self._layouts, host_layouts, group.whole, self._tap_layout)
        return self._program("accumulate", accumulate, specs, (0, 1), results, form.unroll)

    def zeros(self) -> Program:
        """The initial accumulated values of an update, on each replica."""
        results = [spec.sharding for spec in self._accumulated()]

        def zeros(state: State) -> list[jax.Array]:
            return offloaded(self._rounds.open(state), results)

        return self._program("zeros", zeros, (self._state,), (), results)

    def apply(self) -> Program:
        """The change of the weights, once all micro-batches of an update are accumulated."""

        def apply(
            state: State, accumulated: list[jax.Array], scale: jax.Array, steps: jax.Array
        ) -> tuple[State, Taps]:
            accumulated, state = fetched((accumulated, state), (host_layouts, self._layouts))
            gradients, state = self._rounds.close(state, accumulated, steps)
            gradients = self._accumulator.finish(gradients, scale)
            new, tapped, halted = self._update(state, gradients, self._empty_taps().halted)
            entry = jax.tree.map(lambda leaf: leaf[None], tapped)
            new = self._laid_out(unless(halted, new, state))
            return new, Taps(updates=entry, halted=halted)

        host_layouts = [spec.sharding for spec in self._accumulated()]
        specs = (self._state, self._accumulated(), FACTOR, INDEX)
        return self._program("apply", apply, specs, (0,), (self._layouts, self._tap_layout))

    def _accumulated(self) -> list[jax.ShapeDtypeStruct]:
        values = [self._state.non_trainable[k] for k in self._rounds.differing]
        differing = [jax.ShapeDtypeStruct(value.shape, value.dtype) for value in values]
        return [*self._reduction.sums, *specs_on(self._plan.group, OWN, differing)]

    def _updates(self, form: LoopForm) -> Callable[..., tuple[State, ArrayTree, Taps]]:
        accumulation, update_steps = self._plan.accumulation, self._plan.update_steps
        inner = form if form.is_loop else LoopForm(unroll=accumulation.steps)

        def run(
            state: State, batches: ArrayTree, start: jax.Array, count: jax.Array
        ) -> tuple[State, ArrayTree, Taps]:
            scale = scale_of(accumulation.reduction, update_steps, self._plan.replicas)

            def from_weights(number: Index, carry: LoopCarry) -> Computed:
                first = start + number * update_steps
                steps = StepRange(batches, first, update_steps, 1.0)
                sums, after, records = self._rounds.update(
                    inner, carry.state, carry.records, steps, number
                )
                gradients = self._accumulator.finish(sums, scale)
                return PendingUpdate(gradients, after.changing()), records, carry.taps

            def compute(number: Index, carry: LoopCarry) -> Computed:
                return from_weights(number, carry._replace(state=self._with_weights(carry.state)))

            def apply(state: State, pending: PendingUpdate) -> State:
                gradients, after = pending
                state = fetched_after(state, self._layouts, gradients).with_changing(after)
                return self._laid_out(apply_gradients(self._model, state, gradients))

            def body(number: Index, carry: LoopCarry) -> LoopCarry:
                before = self._with_weights(carry.state)
                pending, records, taps = from_weights(number, carry._replace(state=before))
                gradients, after = pending
                slots = fetched_after(before.optimizer, self._layouts.optimizer, gradients)
                before = before._replace(optimizer=slots)
                state = before.with_changing(after)
                new, tapped, halted = self._update(state, gradients, taps.halted)
                taps = taps.with_update(number, tapped)._replace(halted=halted)
                return LoopCarry(self._laid_out(unless(halted, new, before)), records, taps)

            carry = LoopCarry(state, self._records.first(), self._empty_taps())
            stops, tapped = self._plan.taps.stops, self._update_taps
            if stops and form.is_loop and tapped is not None and can_wait(tapped):
                updates = count // update_steps
                carry = run_until_halted(self._model, self._plan, updates, compute, apply, carry)
            else:
                until = (lambda carry: carry.taps.halted) if stops else None
                carry = repeat(body, carry, count // update_steps, form, until)
            state = self._rounds.with_metric_sums(carry.state)
            result, tapped = self._records.result(state, carry.records)
            return state, result, carry.taps._replace(steps=tapped)

        return run

    def _evaluation(self, form: LoopForm) -> Callable[..., tuple[State, ArrayTree, Taps]]:
        def run(
            state: State, batches: ArrayTree, start: jax.Array, count: jax.Array
        ) -> tuple[State, ArrayTree, Taps]:
            steps = StepRange(batches, start, count, jnp.float32(1))
            _, state, records = self._rounds.some(form, state, [], self._records.first(), steps)
            state = self._rounds.with_metric_sums(state)
            result, tapped = self._records.result(state, records)
            return state, result, Taps(tapped)

        return run

    def _with_weights(self, state: State) -> State:
        """Returns a state with its weights in device memory."""
        return state._replace(trainable=fetched(state.trainable, self._layouts.trainable))

    def _laid_out(self, state: State) -> State:
        """Pins the layouts of values that a loop carries, which XLA would otherwise choose."""

        def lay(value: jax.Array, layout: jax.sharding.Sharding) -> jax.Array:
            move = jax.device_put if is_on_host(layout) else lax.with_sharding_constraint
            return move(value, layout)

        return jax.tree.map(lay, state, self._layouts)

    def _empty_taps(self) -> Taps:
        """Returns empty taps for the updates of one call; those of steps are in the records."""
        updates = (self.max_tapped_steps or 0) // self._plan.update_steps
        tapped = self._update_taps or Tapped()
        return empty_taps(Tapped(), 0, tapped, updates, halts=self._plan.taps.stops)

    def _specs_of_update_taps(self) -> Tapped:
        specs = jax.tree.map(lambda s: jax.ShapeDtypeStruct(s.shape, s.dtype), self._state)
        zeros = jax.eval_shape(self._accumulator.zeros)
        return jax.eval_shape(self._update, specs, zeros, None)[1]

    def _program(
        self,
        name: str,
        function: Callable[..., Any],
        arguments: tuple[SpecTree, ...],
        donated: tuple[int, ...],
        results: "LayoutTree | tuple[LayoutTree | Taps, ...]",
        unrolled: int | None = None,
    ) -> Program:
        name = f"{self._plan.mode.value}_{name}"
        in_parts = self._plan.division.parts > 1 and not self.form.is_loop
        return Program(
            name, function, arguments, unrolled, donated, results, keeps_barriers=in_parts
        )
