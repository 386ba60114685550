"""Rounds: each replica runs a step of its own batch, all at the same time.

                round 0   round 1   round 2
    replica 0   batch 0   batch 2   batch 4  |
    replica 1   batch 1   batch 3    (none)  |->  sums of gradients, state, results

A replica without a batch computes with zeros, and its results do not count.

Each function of one replica (`transform.py`) contains the rounds of an update, or of a call. All
other code, the update included, sees whole values, and XLA divides the work as their layouts say:
an update with sharded optimizer state is the code of one device. `start` and `count` are steps, of
which a round takes one for each replica.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import keras
from jax import lax
from jax.sharding import PartitionSpec

from millrace._compat.jax_memory import Space, is_on_host
from millrace.base.devices import REPLICA, WHOLE
from millrace.base.pytrees import ArrayTree
from millrace.programs.plan import LoopForm, Mode, Plan
from millrace.programs.replicas import state_rules
from millrace.programs.replicas.logs import ReplicaLogs
from millrace.programs.replicas.placement import layouts, specs_of
from millrace.programs.replicas.reduce import GradientReduction
from millrace.programs.replicas.state_rules import TracedStep
from millrace.programs.replicas.sums import add_up
from millrace.programs.replicas.transform import OWN, Kinds, on_replicas, specs_on
from millrace.programs.steps.accumulate import (
    Factor,
    Gradients,
    accumulated_variables,
    coefficient_of,
    make_accumulator,
    scale_of,
    weighed,
)
from millrace.programs.steps.loop import BatchRange, Computed, LoopCarry, batch_at
from millrace.programs.steps.offload import fetched, fetched_after, offloaded
from millrace.programs.steps.own_step import own_step
from millrace.programs.steps.program import batch_specs
from millrace.programs.steps.repetition import Index, repeat
from millrace.programs.steps.state import State
from millrace.programs.steps.step import PendingUpdate
from millrace.programs.taps.entries import Taps, empty_entries, tapped_at
from millrace.programs.taps.taps import Tapped

ROUNDS = PartitionSpec(None, REPLICA)  # of a block, `[rounds, replicas, ...]`
# Of the state in a function of one replica, whose metrics are its own.
_STATE: Any = State(WHOLE, WHOLE, WHOLE, WHOLE, OWN)  # type: ignore[arg-type]


class _Steps(NamedTuple):
    """Consecutive steps of a block. In its first and its last round replicas may have no batch."""

    batches: ArrayTree  # of the block, [rounds, 1, ...] for each replica
    start: Index  # first step in the block: its round and its replica
    length: Index | None  # None where every round is full
    # Weight of a micro-batch; of a running mean, the steps of the update before these.
    coefficient: Factor


class _Records(NamedTuple):
    logs: ArrayTree  # or outputs
    taps: Tapped  # [rounds, 1, ...] within a replica, [rounds, replicas, ...] outside


class _Carry(NamedTuple):
    after: State  # the values that micro-batches change, of this replica
    records: _Records
    sums: Gradients  # of this replica


class Rounds:
    """The micro-batches of several replicas, in programs that see whole values."""

    # The update is not among the functions of one replica. Outside of them a norm of all gradients,
    # a clipping or the check of a loss scale is what the optimizer has written, for one replica and
    # for several, and no replica can decide otherwise than the rest.

    def __init__(self, model: keras.Model, plan: Plan, state: State):
        """Traces the step of one replica.

        Args:
            model: a compiled Keras model.
            plan: describes the programs.
            state: specs of the state in the form that programs take.
        """
        self._plan, group = plan, plan.group
        self.gives_gradients = plan.mode is Mode.TRAIN
        self.state, self.layouts = specs_of(plan, state), layouts(plan, state)
        self.batches = jax.tree.map(
            lambda s: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=group.split(1)),
            batch_specs(plan.batch, plan.capacity // plan.replicas, plan.replicas),
        )
        state = state._replace(metric_parts=())
        own = own_step(model, plan, state) if self.gives_gradients else None
        weights = [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in state.trainable]
        # Specs of the gradients of the turns before the last; see `OwnStep`.
        self.earlier = (weights,) * (own.turns - 1 if own is not None else 0)
        self._turns = [
            TracedStep(model, plan, state, self.earlier[:k]) for k in range(len(self.earlier) + 1)
        ]
        self._step = step = self._turns[-1]
        self._read = sorted({index for turn in self._turns for index in turn.optimizer})
        self.primitives = step.primitives
        self.taps_values, self.step_taps = step.taps_values, step.tapped
        self._logs = ReplicaLogs(model, plan, step.result)
        self._record_kinds = _Records(self._logs.layout, ROUNDS)  # type: ignore[arg-type]
        # Every process needs the taps of all replicas; a process on its own leaves them split.
        step_taps = group.split(1) if group.is_local else group.whole
        self.tap_layout: Any = Taps(step_taps, group.whole, group.whole)  # type: ignore[arg-type]
        variables = accumulated_variables(model, plan) if self.gives_gradients else []
        self._accumulator = make_accumulator(variables, plan.accumulation)
        self._is_running = plan.accumulation.reduction.is_running
        self.gradients = jax.eval_shape(self._accumulator.zeros)[: len(state.trainable)]
        self._reduction = GradientReduction(variables, plan)
        # Of the sums that are in host memory between the iterations of a loop.
        self._host_layouts = [
            None if layout is None else Space.Host for layout in self._reduction.host_layouts
        ]
        # Values of the state that differ between replicas within an update. Between two calls of an
        # update in several, they travel with the gradients: the state has one value of each.
        self._differing = [k for k, rule in enumerate(step.rules) if rule.differs]
        differing = [state.non_trainable[k] for k in self._differing]
        # Gradients, followed by these values until the update closes.
        self.accumulated = [*self._reduction.sums, *specs_on(group, OWN, differing)]
        self._accumulated_layouts = [spec.sharding for spec in self.accumulated]

    def first_records(self) -> Any:
        """Returns empty logs or outputs for the steps of a call to fill."""
        return self._logs.first()

    def first_taps(self, steps: int) -> Tapped:
        """Returns empty taps for at most so many steps of a call."""
        replicas = self._plan.replicas
        return empty_entries(self.step_taps, steps // replicas, replicas)

    def of_update(
        self, before: LoopCarry, data: BatchRange, number: Index, form: LoopForm
    ) -> Computed:
        """Returns an update to apply, its gradients added up; see `OneReplica.of_update`."""
        plan, accumulation = self._plan, self._plan.accumulation
        # Where XLA's CPU compiler makes convolutions slow in loops, this loop is unrolled as well.
        inner = form if form.is_loop else LoopForm(unroll=accumulation.steps)

        def rounds(
            state: State,
            records: _Records,
            batches: ArrayTree,
            start: jax.Array,
            number: jax.Array,
            earlier: Sequence[Gradients],
        ) -> tuple[Gradients, State, _Records]:
            steps = _Steps(batches, start, None, 0.0 if self._is_running else 1.0)
            # The sums begin in here, and not as an argument: they are of this update only, so no
            # array of gradients for each replica exists outside.
            first, zeros = number * accumulation.steps, self._accumulator.zeros()
            own = self._loop(
                inner, accumulation.steps, state, records, zeros, steps, first, earlier
            )
            return self._agreed(own, own.sums, 0, plan.replicas)

        run = self._on_replicas(rounds, (ROUNDS, WHOLE, WHOLE, WHOLE), self._reduction.specs)
        start = data.start + number * plan.update_steps
        scale = scale_of(accumulation.reduction, plan.update_steps, plan.replicas)
        found: list[Gradients] = []
        carry = before
        for _ in self._turns:
            sums, carry = run(before, data.batches, start, jnp.int32(number), tuple(found))
            found.append(self._accumulator.finish(sums, scale))
        *earlier, gradients = found
        pending = PendingUpdate(gradients, carry.state.changing(), tuple(earlier))
        return pending, carry.records, carry.taps

    def without_update(
        self, carry: LoopCarry, data: BatchRange, count: jax.Array, form: LoopForm
    ) -> LoopCarry:
        """Runs steps of evaluation or prediction."""
        return self.some(carry, [], data, count, jnp.float32(1), form)[1]

    def zeros(self, state: State) -> list[jax.Array]:
        """Returns the initial accumulated values of an update, `[replicas, ...]`."""
        values, shape = state.non_trainable, (self._plan.replicas,)
        held = [jnp.broadcast_to(values[k], (*shape, *values[k].shape)) for k in self._differing]
        return offloaded([*self._reduction.zeros(), *held], self._accumulated_layouts)

    def some(
        self,
        carry: LoopCarry,
        accumulated: Sequence[jax.Array],
        data: BatchRange,
        count: jax.Array,
        coefficient: jax.Array,
        form: LoopForm,
    ) -> tuple[list[jax.Array], LoopCarry]:
        """Runs any number of steps; in the first and the last round replicas may have no batch.

        Args and result are those of `OneReplica.some`; outside of training nothing is accumulated.
        """
        trains, size = self.gives_gradients, len(self._reduction.sums)
        host_layouts = self._accumulated_layouts if trains else []

        def rounds(
            state: State,
            records: _Records,
            batches: ArrayTree,
            start: jax.Array,
            accumulated: list[jax.Array],
            count: jax.Array,
            coefficient: jax.Array,
        ) -> tuple[Gradients, State, _Records]:
            whole = state.non_trainable
            mine = dict(zip(self._differing, accumulated[size:], strict=True)) if trains else {}
            state = state.replace(non_trainable=[mine.get(k, v) for k, v in enumerate(whole)])
            num_rounds = -(-(start % self._plan.replicas + count) // self._plan.replicas)
            steps = _Steps(batches, start, count, coefficient)
            own = self._loop(form, num_rounds, state, records, accumulated[:size], steps, 0)
            if not trains:
                return self._agreed(own, [], start, count)
            changed = own.after.non_trainable
            # The state keeps the values from before until the update closes.
            kept = [whole[k] if k in mine else v for k, v in enumerate(changed)]
            sums = [*own.sums, *(changed[k] for k in self._differing)]
            return sums, own.after.replace(non_trainable=kept), own.records

        # Nothing is exchanged here: this may be a part of an update only, and gradients are added
        # up once, in `close`, however many calls an update takes.
        run = self._on_replicas(rounds, (ROUNDS, WHOLE, OWN, WHOLE, WHOLE), OWN)
        weights = fetched(carry.state.trainable, self.layouts.trainable)
        accumulated, after = run(
            carry._replace(state=carry.state._replace(trainable=weights)),
            data.batches,
            data.start,
            fetched(list(accumulated), host_layouts),
            count,
            coefficient,
        )
        after = after._replace(state=after.state._replace(trainable=carry.state.trainable))
        return offloaded(accumulated, host_layouts), after

    def close(
        self, state: State, accumulated: Sequence[jax.Array], scale: Factor, steps: Index
    ) -> tuple[Gradients, State]:
        """Returns an update's gradients, added up over replicas, and the state after its steps."""
        size, rules = len(self._reduction.sums), [self._step.rules[k] for k in self._differing]

        def agree(accumulated: list[jax.Array], steps: Index) -> tuple[Gradients, list[jax.Array]]:
            sums, values = accumulated[:size], accumulated[size:]
            return self._reduction.agree(sums, rules, values, 0, steps)[:2]

        run = on_replicas(agree, self._plan.group, (OWN, WHOLE), (self._reduction.specs, WHOLE))
        gradients, agreed = run(fetched(list(accumulated), self._accumulated_layouts), steps)
        changed = dict(zip(self._differing, agreed, strict=True))
        values = [changed.get(k, value) for k, value in enumerate(state.non_trainable)]
        return self._accumulator.finish(gradients, scale), state.replace(non_trainable=values)

    def ended(self, state: State) -> State:
        """Returns a state with the sums of its metrics over replicas, at the end of a call."""
        if not state.metric_parts:
            return state
        group = self._plan.group
        run = on_replicas(lambda parts: add_up(parts, group), group, (OWN,), WHOLE)
        return state.replace(metric=run(list(state.metric_parts)))

    def result(self, state: State, records: ArrayTree) -> Any:
        """Returns the result of a call: logs or outputs, of every step or of the last one."""
        return self._logs.result(state, records)

    def laid_out(self, state: State) -> State:
        """Pins the layouts of values that a loop carries, which XLA would otherwise choose."""

        def lay(value: jax.Array, layout: jax.sharding.Sharding) -> jax.Array:
            move = jax.device_put if is_on_host(layout) else lax.with_sharding_constraint
            return move(value, layout)

        return jax.tree.map(lay, state, self.layouts)

    def _loop(
        self,
        form: LoopForm,
        num_rounds: Index,
        state: State,
        records: _Records,
        sums: Gradients,
        steps: _Steps,
        first_record: Index,
        earlier: Sequence[Gradients] = (),
    ) -> _Carry:
        """Runs this replica's steps, of which `first_record` is the index of the first round.

        Those of a turn before the last have no records.
        """
        start, turn = steps.start, self._turns[len(earlier)]
        me, replicas = lax.axis_index(REPLICA), self._plan.replicas
        rules = self._step.rules

        def body(index: Index, carry: _Carry) -> _Carry:
            after, records, sums = carry
            metrics, number = after.metric, start // replicas + index
            active, before, num_steps = None, me, replicas
            # A whole update has a batch for each replica in each round, and no use for masks.
            if steps.length is not None:
                first = jnp.maximum(number * replicas, start)
                end = jnp.minimum((number + 1) * replicas, start + steps.length)
                step = number * replicas + me
                active = (step >= first) & (step < end)
                before, num_steps = step - first, end - first
            batch = jax.tree.map(lambda leaf: leaf[0], batch_at(steps.batches, number))
            begun = state_rules.begin(rules, after.non_trainable, before)
            read = [state.optimizer[self._read.index(k)] for k in turn.optimizer]
            begun = state.replace(non_trainable=begun, metric=metrics, optimizer=read)
            output = turn.run(begun, batch, active, earlier)
            gradients, new = output.gradients, output.metrics
            non_trainable = state_rules.end(
                rules, after.non_trainable, output.non_trainable, active, num_steps
            )
            factor = steps.coefficient
            if self._is_running:
                # The update begins with replica 0, so the steps before this one tell how many.
                first = factor + jnp.float32(number * replicas + me - start)
                factor = coefficient_of(self._plan.accumulation.reduction, first // replicas, 0)
            gradients, factor = weighed(self._plan, list(gradients), factor)
            if active is not None:
                # Chosen, not multiplied by zero: of a batch of zeros a gradient may well be NaN (a
                # norm of zero, a division by the rows), and NaN times zero is NaN for all replicas.
                factor = jnp.where(active, factor, 0.0)
                gradients = [jnp.where(active, g, jnp.zeros_like(g)) for g in gradients]
                new = [jnp.where(active, n, o) for n, o in zip(new, metrics, strict=True)]
            sums = fetched_after(sums, self._host_layouts, list(gradients))
            sums = offloaded(self._accumulator.add(sums, gradients, factor), self._host_layouts)
            (logs, taps), row = records, first_record + index
            if turn is not self._step:
                return _Carry(after.replace(non_trainable=non_trainable), records, sums)
            logs = self._logs.record(logs, row, output._replace(metrics=new), active)
            if output.tapped:
                taps = tapped_at(taps, row, jax.tree.map(lambda leaf: leaf[None], output.tapped))
            after = after.replace(non_trainable=non_trainable, metric=new)
            return _Carry(after, _Records(logs, taps), sums)

        carry = _Carry(state.changing(), records, offloaded(sums, self._host_layouts))
        carry = repeat(body, carry, num_rounds, form)
        return carry._replace(sums=fetched(carry.sums, self._host_layouts))

    def _agreed(
        self, own: _Carry, sums: Gradients, start: Index, count: Index
    ) -> tuple[Gradients, State, _Records]:
        """Returns added up gradients, the values that all replicas share, and this one's records.

        Args:
            own: values at the end of this replica's loop.
            sums: gradients to add up over replicas.
            start: first step.
            count: number of steps.
        """
        values, rules = own.after.non_trainable, self._step.rules
        # One exchange for gradients and state: between processes on CPUs it costs the same for few
        # bytes as for many (`sums.py` has the times).
        gradients, new, _ = self._reduction.agree(sums, rules, values, start, count)
        return gradients, own.after.replace(non_trainable=new), own.records

    def _on_replicas(
        self,
        function: Callable[..., tuple[Gradients, State, _Records]],
        arguments: tuple[Kinds, ...],
        sums: Kinds,
    ) -> Callable[..., tuple[list[jax.Array], LoopCarry]]:
        """Returns a function of a carry and other arguments that runs on each replica.

        Args:
            function: of one replica: of the values of the state that a step reads, and of records.
            arguments: kinds of the arguments after these.
            sums: kind of the sums.
        """
        kinds = (_STATE, self._record_kinds)
        run = on_replicas(function, self._plan.group, (*kinds, *arguments), (sums, *kinds))

        def on_carry(carry: LoopCarry, *others: Any) -> tuple[list[jax.Array], LoopCarry]:
            state, records, taps = carry
            # Of the optimizer's state only what a step reads goes in: where it is sharded, what
            # goes in has to be gathered on every device first.
            read = tuple(state.optimizer[index] for index in self._read)
            values = state._replace(optimizer=read, metric_parts=(), metric=state.metric_parts)
            sums, after, (records, tapped) = run(values, _Records(records, taps.steps), *others)
            state = state.replace(non_trainable=after.non_trainable, metric_parts=after.metric)
            return sums, LoopCarry(state, records, taps._replace(steps=tapped))

        return on_carry
