"""Rounds: each replica runs a step of its own batch, all at the same time.

                round 0   round 1   round 2
    replica 0   batch 0   batch 2   batch 4  |
    replica 1   batch 1   batch 3    (none)  |->  sums of gradients, state, results

A replica without a batch computes with zeros, and nothing of it counts.
"""

from typing import Any

import jax
import jax.numpy as jnp
import keras
from jax import lax
from jax.sharding import PartitionSpec

from millrace._compat.jax_memory import Space
from millrace.devices import PARTS, REPLICA, WHOLE
from millrace.plan import LoopForm, Mode, Plan
from millrace.replicas import state_rules
from millrace.replicas.logs import ReplicaRecords
from millrace.replicas.reduce import GradientReduction, add_up
from millrace.replicas.traced_step import TracedStep
from millrace.steps.accumulate import coefficient_of, make_accumulator
from millrace.steps.loop import batch_at, repeat
from millrace.steps.offload import fetched, fetched_after, offloaded
from millrace.steps.state import State, Values


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
        # Those that rest in host memory between the turns of a loop.
        self._host_layouts = [
            None if layout is None else Space.Host for layout in reduction.host_layouts
        ]
        # Values of the state that replicas do not have in common within an update.
        self.differing = [k for k, rule in enumerate(step.rules) if rule.differs]

    def update(
        self, form: LoopForm, state: State, records: Any, batches: Any, start: Any, update: Any
    ) -> tuple[Any, State, Any]:
        """Runs the rounds of one whole update.

        Args:
            form: of the loop over rounds.
            state: whole values.
            records: results so far.
            batches: of the block, `[rounds, replicas, ...]`.
            start: first step in the block.
            update: its number in the call.

        Returns:
            Gradients added up over replicas, the new state, results.
        """
        steps = self._plan.accumulation.steps

        def rounds(given: Any, batches: Any, first: Any, update: Any) -> Any:
            carry = (*given, self._accumulator.zeros())
            given = 0.0 if self._is_running else 1.0
            record = update * steps
            *rest, sums = self._loop(form, steps, carry, batches, first, None, given, record)
            return self._agreed(rest, sums, 0, self._plan.replicas)

        run = self._under_mesh(rounds, self._reduction.specs, (WHOLE, WHOLE))
        rest, sums = run(self._given(state, records), batches, start, jnp.int32(update))
        return sums, *self._taken(state, rest)

    def open(self, state: State) -> list[jax.Array]:
        """Returns what an update accumulates into, `[replicas, ...]`.

        Gradients, followed by the values that differ between replicas until the update closes.
        """
        values = list(state[1])
        shape = (self._plan.replicas,)
        held = [jnp.broadcast_to(values[k], (*shape, *values[k].shape)) for k in self.differing]
        return [*self._reduction.zeros(), *held]

    def some(
        self,
        form: LoopForm,
        state: State,
        accumulated: Any,
        records: Any,
        batches: Any,
        start: Any,
        count: Any,
        coefficient: Any,
    ) -> tuple[Any, State, Any]:
        """Runs `count` steps; in the first and the last round replicas may have no batch.

        Args:
            form: of the loop over rounds.
            state: whole values.
            accumulated: by an update so far, as `open` returns it; none outside of training.
            records: results so far.
            batches: of the block, `[rounds, replicas, ...]`.
            start: first step in the block: its round and its replica.
            count: steps.
            coefficient: weight of a micro-batch, or the steps of the update before these.

        Returns:
            What is accumulated, the new state, results.
        """
        trains, size = self._plan.mode is Mode.TRAIN, len(self._reduction.sums)

        def rounds(
            given: Any, batches: Any, start: Any, accumulated: Any, count: Any, factor: Any
        ) -> Any:
            trainable, optimizer, whole, metrics, records = given
            own = [value[0] for value in accumulated]
            mine = dict(zip(self.differing, own[size:], strict=True)) if trains else {}
            non_trainable = [mine.get(k, value) for k, value in enumerate(whole)]
            carry = (trainable, optimizer, non_trainable, metrics, records, own[:size])
            number = -(-(start % self._plan.replicas + count) // self._plan.replicas)
            *rest, sums = self._loop(form, number, carry, batches, start, count, factor, 0)
            if not trains:
                return self._agreed(rest, None, start, count)[0], []
            non_trainable, metrics, records = rest
            sums = [*sums, *(non_trainable[k] for k in self.differing)]
            # The state has these as they were, until the update closes.
            kept = [whole[k] if k in mine else value for k, value in enumerate(non_trainable)]
            return (kept, [m[None] for m in metrics], records), [value[None] for value in sums]

        run = self._under_mesh(rounds, PARTS, (WHOLE, PARTS, WHOLE, WHOLE))
        given = self._given(state, records)
        rest, made = run(given, batches, start, list(accumulated), count, coefficient)
        return made, *self._taken(state, rest)

    def close(self, state: State, accumulated: Any, steps: Any) -> tuple[Any, State]:
        """Returns an update's gradients, added up over replicas, and the state after it.

        Args:
            state: whole values.
            accumulated: by the update.
            steps: of the update.
        """
        size, rules = len(self._reduction.sums), [self._step.rules[k] for k in self.differing]

        def agree(accumulated: Any, steps: Any) -> Any:
            own = [value[0] for value in accumulated]
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
        known = dict(zip(self.differing, agreed, strict=True))
        values = [known.get(k, value) for k, value in enumerate(state[1])]
        return gradients, (state[0], Values(values), *state[2:])

    def _loop(
        self,
        form: LoopForm,
        rounds: Any,
        carry: Any,
        batches: Any,
        start: Any,
        count: Any,
        coefficient: Any,
        first_record: Any,
    ) -> Any:
        """Runs this replica's steps. `count` is None where every round is full."""
        trainable, optimizer, non_trainable, metrics, records, sums = carry
        me, replicas = lax.axis_index(REPLICA), self._plan.replicas
        rules, recorder = self._step.rules, self._records

        def body(turn: Any, carry: Any) -> Any:
            non_trainable, metrics, records, sums = carry
            number = start // replicas + turn
            active, before, steps = None, me, replicas
            if count is not None:
                first = jnp.maximum(number * replicas, start)
                end = jnp.minimum((number + 1) * replicas, start + count)
                step = number * replicas + me
                active = (step >= first) & (step < end)
                before, steps = step - first, end - first
            batch = jax.tree.map(lambda leaf: leaf[0], batch_at(batches, number))
            begun = state_rules.begin(rules, non_trainable, before)
            gradients, ended, new, result, tapped = self._step.run(
                trainable, optimizer, begun, metrics, batch
            )
            non_trainable = state_rules.end(rules, non_trainable, ended, active, steps)
            factor = coefficient
            if self._is_running:
                # The update begins with replica 0, so the steps before this one tell how many.
                first = coefficient + jnp.float32(number * replicas + me - start)
                factor = coefficient_of(self._plan.accumulation.reduction, first // replicas, 0)
            if active is not None:
                factor = jnp.where(active, factor, 0.0) if self._is_running else factor
                gradients = [jnp.where(active, g, jnp.zeros_like(g)) for g in gradients]
                new = [jnp.where(active, n, o) for n, o in zip(new, metrics, strict=True)]
            sums = fetched_after(sums, self._host_layouts, list(gradients))
            sums = offloaded(self._accumulator.add(sums, gradients, factor), self._host_layouts)
            records = recorder.record(records, first_record + turn, new, result, tapped, active)
            return non_trainable, new, records, sums

        sums = offloaded(sums, self._host_layouts)
        carry = (non_trainable, [m[0] for m in metrics], records, sums)
        *rest, sums = repeat(body, carry, rounds, form)
        return *rest, fetched(sums, self._host_layouts)

    def _had(self, start: Any, count: Any) -> tuple[Any, Any]:
        """Returns whether this replica had one of `count` steps from `start` on, and the last."""
        me, replicas = lax.axis_index(REPLICA), self._plan.replicas
        return (me - start) % replicas < count, me == (start + count - 1) % replicas

    def _agreed(self, rest: Any, sums: Any, start: Any, count: Any) -> tuple[Any, Any]:
        """Returns what a replica gives back: values that all share, its metrics, its records.

        Args:
            rest: what its loop ended with.
            sums: gradients to add up over replicas; None if there are none.
            start: first step.
            count: steps.
        """
        non_trainable, metrics, records = rest
        rules = self._step.rules
        shares = state_rules.shares(rules, non_trainable, *self._had(start, count))
        if sums is None:
            added = add_up(shares, self._plan)
        else:
            sums, added = self._reduction.add_up(sums, shares)
        active = jnp.minimum(count, self._plan.replicas)
        agreed = state_rules.merged(rules, non_trainable, added, active)
        return (agreed, [value[None] for value in metrics], records), sums

    def _given(self, state: State, records: Any) -> Any:
        """Takes from whole values what the replicas are given."""
        trainable, non_trainable, *optimizer = map(list, state)
        metrics = optimizer.pop() if len(optimizer) else []
        read = [optimizer[0][index] for index in self._step.optimizer] if optimizer else []
        return trainable, read, non_trainable, metrics[: len(metrics) // 2], records

    def _taken(self, state: State, rest: Any) -> tuple[State, Any]:
        """Makes a state of what the replicas gave back."""
        non_trainable, metrics, records = rest
        new = [state[0], Values(non_trainable), *state[2:]]
        if len(state) > 2:
            # Their sums follow when the call ends: `with_metric_sums`.
            new[-1] = Values([*metrics, *list(state[-1])[len(metrics) :]])
        return tuple(new), records

    def with_metric_sums(self, state: State) -> State:
        """Returns a state whose metrics have their sums over replicas."""
        if len(state) == 2:
            return state
        metrics = list(state[-1])
        parts = metrics[: len(metrics) // 2]

        def under_mesh(parts: Any) -> Any:
            return add_up([value[0] for value in parts], self._plan)

        sums = jax.shard_map(
            under_mesh, mesh=self._plan.group.mesh, in_specs=PARTS, out_specs=WHOLE, check_vma=False
        )(parts)
        return (*state[:-1], Values([*parts, *sums]))

    def _under_mesh(self, function: Any, made: Any, scalars: Any) -> Any:
        records = self._records.layout
        return jax.shard_map(
            function,
            mesh=self._plan.group.mesh,
            in_specs=(
                (WHOLE, WHOLE, WHOLE, PARTS, records),
                PartitionSpec(None, REPLICA),
                *scalars,
            ),
            out_specs=((WHOLE, PARTS, records), made),
            check_vma=False,
        )
