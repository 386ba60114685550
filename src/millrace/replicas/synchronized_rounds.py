"""Rounds of updates whose micro-batches share statistics, over all replicas.

The counterpart of `Rounds.update`: each replica goes through the levels of its own micro-batches
(`steps/synchronized_update.py`), and the statistics at the end of a level are those of all
replicas. Seeds go on as in `rounds.py`.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import keras
from jax import lax

from millrace.devices import REPLICA, WHOLE
from millrace.plan import LoopForm, Plan
from millrace.pytrees import ArrayTree
from millrace.replicas import state_rules
from millrace.replicas.logs import Records, ReplicaRecords
from millrace.replicas.placement import own_part
from millrace.replicas.reduce import GradientReduction, add_up
from millrace.replicas.rounds import (
    ROUNDS,
    RoundCarry,
    RoundInputs,
    RoundOutputs,
    Rounds,
    StepRange,
)
from millrace.replicas.state_rules import StepOutput, TracedStep
from millrace.steps.accumulate import Gradients, make_accumulator
from millrace.steps.loop import Index, batch_at, repeat
from millrace.steps.state import State
from millrace.steps.synchronized_statistics import SynchronizedForward, loss_weights
from millrace.steps.synchronized_update import EqualBatches, SynchronizedUpdate


class RoundPart(NamedTuple):
    """Consecutive steps of an update, of one block."""

    forward: SynchronizedForward
    steps: int
    rows: int  # of a micro-batch


class SynchronizedRounds(Rounds):
    """Runs rounds of updates; all micro-batches of an update are in one program."""

    def __init__(
        self,
        model: keras.Model,
        plan: Plan,
        step: TracedStep,
        records: ReplicaRecords,
        reduction: GradientReduction,
        forward: SynchronizedForward,
    ):
        """Takes what `Rounds` takes, and the forward of the plan's batch."""
        super().__init__(model, plan, step, records, reduction)
        self._trainable, self._forward = model.trainable_variables, forward

    def update(
        self, form: LoopForm, state: State, records: Records, steps: StepRange, number: Index
    ) -> tuple[Gradients, State, Records]:
        """Runs the rounds of one whole update; see `Rounds.update`."""
        part = RoundPart(self._forward, self._plan.update_steps, self._plan.batch.rows)
        return self.of_parts(form, state, records, [part], [steps.batches], [steps.start], number)

    def of_parts(
        self,
        form: LoopForm,
        state: State,
        records: Records,
        parts: Sequence[RoundPart],
        blocks: list[ArrayTree],
        starts: list[Any],
        number: Index = 0,
    ) -> tuple[Gradients, State, Records]:
        """Runs an update whose micro-batches come from several blocks.

        Args:
            form: of the loops over rounds.
            state: whole values.
            records: of the steps before.
            parts: of the update, in order.
            blocks: batches of the block of each part.
            starts: first step of each part in its block.
            number: index of the update in the call.

        Returns:
            Gradients added up over replicas, the new state, records.
        """
        total = sum(part.steps for part in parts)

        def rounds(
            inputs: RoundInputs,
            blocks: list[ArrayTree],
            starts: list[jax.Array],
            number: jax.Array,
        ) -> tuple[RoundOutputs, Gradients | None]:
            first_record = number * self._plan.accumulation.steps
            carry = self._levels(form, inputs, parts, blocks, starts, first_record)
            return self._agreed(carry, carry.sums, 0, total)

        run = self._under_mesh(rounds, (ROUNDS, WHOLE, WHOLE), self._reduction.specs)
        starts = [jnp.asarray(start, jnp.int32) for start in starts]
        outputs, sums = run(self._inputs(state, records), blocks, starts, jnp.int32(number))
        return sums, *self._with_outputs(state, outputs)

    def _levels(
        self,
        form: LoopForm,
        inputs: RoundInputs,
        parts: Sequence[RoundPart],
        blocks: Sequence[ArrayTree],
        starts: Sequence[jax.Array],
        first_record: Index,
    ) -> RoundCarry:
        """Runs this replica's micro-batches."""
        plan, metrics = self._plan, own_part(inputs.metrics)
        seeds, _ = loss_weights(plan, [(part.rows, part.steps) for part in parts])
        optimizer = dict(zip(self._step.optimizer, inputs.optimizer, strict=True))
        equal: list[EqualBatches] = []
        first = 0  # replica of the next part's first step
        for part, block, start, seed in zip(parts, blocks, starts, seeds, strict=True):
            equal.append(self._equal_batches(part, block, start, first, seed, optimizer))
            first = (first + part.steps) % plan.replicas
        accumulator = make_accumulator(self._trainable, plan.accumulation)
        update = SynchronizedUpdate(
            equal,
            inputs.trainable,
            [*inputs.non_trainable, *metrics],
            lambda values: add_up(values, plan),
            unroll=not form.is_loop,
        )
        result = update.run(accumulator.zeros())
        size, records = len(inputs.non_trainable), inputs.records
        for part, each, leaves, states in zip(
            parts, equal, result.outputs, result.states, strict=True
        ):
            logs, tapped = part.forward.outputs(leaves)

            def store(
                number: Index,
                records: Records,
                outputs: Any = (logs, tapped),
                states: dict[int, jax.Array] = states,
                active: jax.Array | None = each.active,
                first: Index = first_record,
            ) -> Records:
                mine, own = jax.tree.map(lambda leaf: leaf[number], outputs)
                after = [
                    states[size + k][number] if size + k in states else value
                    for k, value in enumerate(metrics)
                ]
                output = StepOutput([], [], after, mine, own)
                is_active = None if active is None else active[number]
                return self._records.record(records, first + number, output, is_active)

            records = repeat(store, records, each.count, LoopForm(unroll=None))
            # A round that two parts share has one record.
            shared = part.steps % plan.replicas != 0 and part is not parts[-1]
            first_record = first_record + each.count - shared
        return RoundCarry(result.changing[:size], result.changing[size:], records, result.gradients)

    def _equal_batches(
        self,
        part: RoundPart,
        block: ArrayTree,
        start: jax.Array,
        first: int,
        seed: float,
        optimizer: dict[int, jax.Array],
    ) -> EqualBatches:
        """Returns this replica's micro-batches of a part that begins with replica `first`."""
        me, replicas = lax.axis_index(REPLICA), self._plan.replicas
        rules, end = self._step.rules, first + part.steps
        count = -(-end // replicas)
        # Rounds of the part, and which of their steps there are.
        number = jnp.arange(count)
        begins = jnp.maximum(number * replicas, first)
        ends = jnp.minimum((number + 1) * replicas, end)
        step = number * replicas + me
        is_full = first == 0 and end % replicas == 0
        active = None if is_full else (step >= begins) & (step < ends)

        def batch(number: jax.Array) -> ArrayTree:
            taken = batch_at(block, start // replicas + number)
            return jax.tree.map(lambda leaf: leaf[0], taken)

        def begin(
            numbers: Sequence[int], values: list[jax.Array], number: jax.Array
        ) -> list[jax.Array]:
            size = sum(k < len(rules) for k in numbers)
            own = [rules[k] for k in numbers[:size]]
            before = (step - begins)[number]
            return [*state_rules.begin(own, values[:size], before), *values[size:]]

        def end_of(
            numbers: Sequence[int], old: list[jax.Array], new: list[jax.Array], number: jax.Array
        ) -> list[jax.Array]:
            size = sum(k < len(rules) for k in numbers)
            own = [rules[k] for k in numbers[:size]]
            is_active = None if active is None else active[number]
            steps = (ends - begins)[number]
            states = state_rules.end(own, old[:size], new[:size], is_active, steps)
            metrics = new[size:]
            if is_active is not None:
                pairs = zip(metrics, old[size:], strict=True)
                metrics = [jnp.where(is_active, n, o) for n, o in pairs]
            return [*states, *metrics]

        seeds = jnp.full(count, seed, jnp.float32)
        return part.forward.equal_batches(
            optimizer, batch, seeds, active=active, begin=begin, end=end_of
        )
