"""Rounds: each replica runs a step of its own batch, all at the same time.

                round 0   round 1   round 2
    replica 0   batch 0   batch 2   batch 4  |
    replica 1   batch 1   batch 3    (none)  |->  sums of gradients, state, results

A replica without a batch computes with zeros, and its results do not count.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import keras
from jax import lax
from jax.sharding import PartitionSpec

from millrace._compat.jax_memory import Space
from millrace.base.devices import PARTS, REPLICA, WHOLE
from millrace.base.pytrees import ArrayTree
from millrace.programs.plan import LoopForm, Mode, Plan
from millrace.programs.replicas import state_rules
from millrace.programs.replicas.logs import Records, ReplicaRecords
from millrace.programs.replicas.placement import own_part, with_axis
from millrace.programs.replicas.reduce import GradientReduction
from millrace.programs.replicas.state_rules import TracedStep
from millrace.programs.replicas.sums import add_up
from millrace.programs.steps.accumulate import Factor, Gradients, coefficient_of, make_accumulator
from millrace.programs.steps.loop import batch_at
from millrace.programs.steps.offload import fetched, fetched_after, offloaded
from millrace.programs.steps.repetition import Index, repeat
from millrace.programs.steps.state import State

ROUNDS = PartitionSpec(None, REPLICA)  # of a block, `[rounds, replicas, ...]`


class StepRange(NamedTuple):
    """Consecutive steps of a block. In its first and its last round replicas may have no batch."""

    batches: ArrayTree  # of the block, [rounds, replicas, ...]
    start: Index  # first step in the block: its round and its replica
    num_steps: Index | None  # None where every round is full
    # Weight of a micro-batch; of a running mean, the steps of the update before these.
    coefficient: Factor


class RoundInputs(NamedTuple):
    """The arguments of a function under the mesh: a state and the records so far."""

    trainable: Sequence[jax.Array]
    optimizer: Sequence[jax.Array]  # those that a step reads
    non_trainable: Sequence[jax.Array]
    metrics: Sequence[jax.Array]  # of one replica, [1, ...]
    records: Records


class RoundOutputs(NamedTuple):
    """The values that rounds change."""

    non_trainable: Sequence[jax.Array]
    metrics: Sequence[jax.Array]  # [1, ...] under the mesh, [replicas, ...] outside
    records: Records


class _Carry(NamedTuple):
    non_trainable: Sequence[jax.Array]
    metrics: Sequence[jax.Array]  # of this replica
    records: Records
    sums: Gradients  # of this replica


class Rounds:
    """Runs rounds within a program that sees whole values."""

    def __init__(
        self,
        model: keras.Model,
        plan: Plan,
        step: TracedStep,
        records: ReplicaRecords,
        reduction: GradientReduction,
    ):
        self._plan, self._step, self._reduction = plan, step, reduction
        self._records = records
        variables = model.trainable_variables if plan.mode is Mode.TRAIN else []
        self._accumulator = make_accumulator(variables, plan.accumulation)
        self._is_running = plan.accumulation.reduction.is_running
        # Of the sums that are in host memory between the iterations of a loop.
        self._host_layouts = [
            None if layout is None else Space.Host for layout in reduction.host_layouts
        ]
        # Values of the state that differ between replicas within an update.
        self.differing = [k for k, rule in enumerate(step.rules) if rule.differs]

    def update(
        self, form: LoopForm, state: State, records: Records, steps: StepRange, number: Index
    ) -> tuple[Gradients, State, Records]:
        """Runs the rounds of one whole update.

        Args:
            form: of the loop over rounds.
            state: whole values.
            records: of the steps before.
            steps: steps of the update.
            number: index of the update in the call.

        Returns:
            Gradients added up over replicas, the new state, records.
        """
        num_rounds = self._plan.accumulation.steps

        def rounds(
            inputs: RoundInputs, batches: ArrayTree, start: jax.Array, number: jax.Array
        ) -> tuple[RoundOutputs, Gradients | None]:
            steps_here = StepRange(batches, start, None, 0.0 if self._is_running else 1.0)
            first_record = number * num_rounds
            zeros = self._accumulator.zeros()
            carry = self._loop(form, num_rounds, inputs, zeros, steps_here, first_record)
            return self._agreed(carry, carry.sums, 0, self._plan.replicas)

        run = self._under_mesh(rounds, (ROUNDS, WHOLE, WHOLE), self._reduction.specs)
        inputs = self._inputs(state, records)
        outputs, sums = run(inputs, steps.batches, steps.start, jnp.int32(number))
        return sums, *self._with_outputs(state, outputs)

    def open(self, state: State) -> list[jax.Array]:
        """Returns the initial accumulated values of an update, `[replicas, ...]`.

        Gradients, followed by the values that differ between replicas until the update closes.
        """
        values = state.non_trainable
        shape = (self._plan.replicas,)
        held = [jnp.broadcast_to(values[k], (*shape, *values[k].shape)) for k in self.differing]
        return [*self._reduction.zeros(), *held]

    def some(
        self,
        form: LoopForm,
        state: State,
        accumulated: Sequence[jax.Array],
        records: Records,
        steps: StepRange,
    ) -> tuple[list[jax.Array], State, Records]:
        """Runs any number of steps; in the first and the last round replicas may have no batch.

        Args:
            form: of the loop over rounds.
            state: whole values.
            accumulated: values of an update so far, from `open`; empty outside of training.
            records: of the steps before.
            steps: which steps to run.

        Returns:
            The accumulated values, the new state, records.
        """
        trains, size = self._plan.mode is Mode.TRAIN, len(self._reduction.sums)

        def rounds(
            inputs: RoundInputs,
            batches: ArrayTree,
            start: jax.Array,
            accumulated: list[jax.Array],
            count: jax.Array,
            coefficient: jax.Array,
        ) -> tuple[RoundOutputs, list[jax.Array]]:
            whole = inputs.non_trainable
            own = own_part(accumulated)
            mine = dict(zip(self.differing, own[size:], strict=True)) if trains else {}
            inputs = inputs._replace(non_trainable=[mine.get(k, v) for k, v in enumerate(whole)])
            num_rounds = -(-(start % self._plan.replicas + count) // self._plan.replicas)
            steps_here = StepRange(batches, start, count, coefficient)
            carry = self._loop(form, num_rounds, inputs, own[:size], steps_here, 0)
            if not trains:
                return self._agreed(carry, None, start, count)[0], []
            sums = [*carry.sums, *(carry.non_trainable[k] for k in self.differing)]
            # The state keeps the values from before until the update closes.
            kept = [whole[k] if k in mine else v for k, v in enumerate(carry.non_trainable)]
            outputs = RoundOutputs(kept, with_axis(list(carry.metrics)), carry.records)
            return outputs, with_axis(sums)

        run = self._under_mesh(rounds, (ROUNDS, WHOLE, PARTS, WHOLE, WHOLE), PARTS)
        outputs, sums = run(
            self._inputs(state, records),
            steps.batches,
            steps.start,
            list(accumulated),
            steps.num_steps,
            steps.coefficient,
        )
        return sums, *self._with_outputs(state, outputs)

    def close(
        self, state: State, accumulated: Sequence[jax.Array], steps: Index
    ) -> tuple[Gradients, State]:
        """Returns an update's gradients, added up over replicas, and the state after it.

        Args:
            state: whole values.
            accumulated: accumulated values of the update.
            steps: number of steps of the update.
        """
        size, rules = len(self._reduction.sums), [self._step.rules[k] for k in self.differing]

        def agree(accumulated: list[jax.Array], steps: Index) -> tuple[Gradients, list[jax.Array]]:
            own = own_part(accumulated)
            shares = state_rules.shares(rules, own[size:], *self._had(0, steps))
            gradients, added = self._reduction.add_up(own[:size], shares)
            active = jnp.minimum(steps, self._plan.replicas)
            return gradients, state_rules.merged(rules, own[size:], added, active)

        gradients, agreed = jax.shard_map(
            agree,
            mesh=self._plan.group.mesh,
            in_specs=(PARTS, WHOLE),
            out_specs=(self._reduction.specs, WHOLE),
            check_vma=False,
        )(list(accumulated), steps)
        changed = dict(zip(self.differing, agreed, strict=True))
        values = [changed.get(k, value) for k, value in enumerate(state.non_trainable)]
        return gradients, state.replace(non_trainable=values)

    def _loop(
        self,
        form: LoopForm,
        num_rounds: Index,
        inputs: RoundInputs,
        sums: Gradients,
        steps: StepRange,
        first_record: Index,
    ) -> _Carry:
        """Runs this replica's steps, of which `first_record` is the index of the first round."""
        start = steps.start
        me, replicas = lax.axis_index(REPLICA), self._plan.replicas
        rules, recorder = self._step.rules, self._records

        def body(index: Index, carry: _Carry) -> _Carry:
            non_trainable, metrics, records, sums = carry
            number = start // replicas + index
            active, before, num_steps = None, me, replicas
            if steps.num_steps is not None:
                first = jnp.maximum(number * replicas, start)
                end = jnp.minimum((number + 1) * replicas, start + steps.num_steps)
                step = number * replicas + me
                active = (step >= first) & (step < end)
                before, num_steps = step - first, end - first
            batch = jax.tree.map(lambda leaf: leaf[0], batch_at(steps.batches, number))
            begun = state_rules.begin(rules, non_trainable, before)
            values = (inputs.trainable, inputs.optimizer, begun, metrics)
            output = self._step.run(*values, batch, active)
            gradients, new = output.gradients, output.metrics
            non_trainable = state_rules.end(
                rules, non_trainable, output.non_trainable, active, num_steps
            )
            factor = steps.coefficient
            if self._is_running:
                # The update begins with replica 0, so the steps before this one tell how many.
                first = factor + jnp.float32(number * replicas + me - start)
                factor = coefficient_of(self._plan.accumulation.reduction, first // replicas, 0)
            if active is not None:
                factor = jnp.where(active, factor, 0.0) if self._is_running else factor
                gradients = [jnp.where(active, g, jnp.zeros_like(g)) for g in gradients]
                new = [jnp.where(active, n, o) for n, o in zip(new, metrics, strict=True)]
            sums = fetched_after(sums, self._host_layouts, list(gradients))
            sums = offloaded(self._accumulator.add(sums, gradients, factor), self._host_layouts)
            output = output._replace(metrics=new)
            records = recorder.record(records, first_record + index, output, active)
            return _Carry(non_trainable, new, records, sums)

        sums = offloaded(sums, self._host_layouts)
        carry = _Carry(inputs.non_trainable, own_part(inputs.metrics), inputs.records, sums)
        carry = repeat(body, carry, num_rounds, form)
        return carry._replace(sums=fetched(carry.sums, self._host_layouts))

    def _had(self, start: Index, count: Index) -> tuple[jax.Array, jax.Array]:
        """Returns whether this replica had one of `count` steps from `start` on, and the last."""
        me, replicas = lax.axis_index(REPLICA), self._plan.replicas
        return (me - start) % replicas < count, me == (start + count - 1) % replicas

    def _agreed(
        self, carry: _Carry, sums: Gradients | None, start: Index, count: Index
    ) -> tuple[RoundOutputs, Gradients | None]:
        """Returns a replica's outputs, with the values that all replicas share, and its sums.

        Args:
            carry: values at the end of its loop.
            sums: gradients to add up over replicas; None if there are none.
            start: first step.
            count: number of steps.
        """
        rules = self._step.rules
        shares = state_rules.shares(rules, carry.non_trainable, *self._had(start, count))
        if sums is None:
            added = add_up(shares, self._plan.group)
        else:
            sums, added = self._reduction.add_up(sums, shares)
        active = jnp.minimum(count, self._plan.replicas)
        agreed = state_rules.merged(rules, carry.non_trainable, added, active)
        return RoundOutputs(agreed, with_axis(list(carry.metrics)), carry.records), sums

    def _inputs(self, state: State, records: Records) -> RoundInputs:
        """Returns the arguments of a function under the mesh, as whole values."""
        read = [state.optimizer[index] for index in self._step.optimizer]
        non_trainable, metrics = list(state.non_trainable), list(state.metric_parts)
        return RoundInputs(list(state.trainable), read, non_trainable, metrics, records)

    def _with_outputs(self, state: State, outputs: RoundOutputs) -> tuple[State, Records]:
        """Returns a state with the values that rounds changed, and the records.

        The sums of the metrics follow when the call ends: `with_metric_sums`.
        """
        new = state.replace(non_trainable=outputs.non_trainable, metric_parts=outputs.metrics)
        return new, outputs.records

    def with_metric_sums(self, state: State) -> State:
        """Returns a state with the sums of its metrics over replicas."""
        if not state.metric_parts:
            return state

        def under_mesh(parts: list[jax.Array]) -> list[jax.Array]:
            return add_up(own_part(parts), self._plan.group)

        sums = jax.shard_map(
            under_mesh,
            mesh=self._plan.group.mesh,
            in_specs=(PARTS,),
            out_specs=WHOLE,
            check_vma=False,
        )(list(state.metric_parts))
        return state.replace(metric=sums)

    def _under_mesh(
        self,
        function: Callable[..., tuple[RoundOutputs, list[jax.Array] | None]],
        arguments: tuple[PartitionSpec, ...],
        sums: PartitionSpec | list[PartitionSpec],
    ) -> Callable[..., Any]:
        """Returns a function of inputs and other arguments that runs on each replica.

        Args:
            function: of one replica; returns its outputs and sums.
            arguments: layouts of the arguments after the inputs.
            sums: layout of the sums.
        """
        records: Any = self._records.layout
        return jax.shard_map(
            function,
            mesh=self._plan.group.mesh,
            in_specs=(RoundInputs(WHOLE, WHOLE, WHOLE, PARTS, records), *arguments),  # type: ignore[arg-type]
            out_specs=(RoundOutputs(WHOLE, PARTS, records), sums),  # type: ignore[arg-type]
            check_vma=False,
        )
