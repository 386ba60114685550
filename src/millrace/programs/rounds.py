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

from millrace.devices import REPLICA
from millrace.plan import LoopForm, Mode, Plan
from millrace.programs import follow
from millrace.programs.accumulate import make_accumulator
from millrace.programs.add_up import add_up
from millrace.programs.loop import batch_at, repeat
from millrace.programs.reduce import Reduction
from millrace.programs.replica_logs import ReplicaLogs
from millrace.programs.state import State, Values
from millrace.programs.traced_step import TracedStep

WHOLE, PARTS = PartitionSpec(), PartitionSpec(REPLICA)


class Rounds:
    """Runs rounds within a program that sees whole values."""

    def __init__(
        self,
        model: keras.Model,
        plan: Plan,
        step: TracedStep,
        logs: ReplicaLogs,
        reduction: Reduction,
    ):
        self._plan, self._step, self._logs, self._reduction = plan, step, logs, reduction
        variables = model.trainable_variables if plan.mode is Mode.TRAIN else []
        self._accumulator = make_accumulator(variables, plan.accumulation)

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
            *rest, sums = self._loop(form, steps, carry, batches, first, None, 1.0, update * steps)
            return self._agreed(rest, sums, self._plan.replicas)

        run = self._under_mesh(rounds, self._reduction.specs)
        first = start // self._plan.replicas
        rest, sums = run(self._given(state, records), batches, first, jnp.int32(update))
        return sums, *self._taken(state, rest)

    def some(
        self,
        form: LoopForm,
        state: State,
        sums: Any,
        records: Any,
        batches: Any,
        start: Any,
        count: Any,
        coefficient: Any,
    ) -> tuple[Any, State, Any]:
        """Runs `count` steps, in the last round of which replicas may have no batch.

        Args:
            form: of the loop over rounds.
            state: whole values.
            sums: accumulated gradients `[replicas, ...]`; none outside of training.
            records: results so far.
            batches: of the block, `[rounds, replicas, ...]`.
            start: first step in the block, of replica 0.
            count: steps.
            coefficient: weight of a micro-batch.

        Returns:
            Sums, the new state, results.
        """
        replicas = self._plan.replicas

        def rounds(given: Any, batches: Any, first: Any, sums: Any, count: Any, factor: Any) -> Any:
            carry = (*given, [value[0] for value in sums])
            *rest, sums = self._loop(
                form, -(-count // replicas), carry, batches, first, count, factor, 0
            )
            rest, _ = self._agreed(rest, None, jnp.minimum(count, replicas))
            return rest, [value[None] for value in sums]

        run = self._under_mesh(rounds, PARTS, (PARTS, WHOLE, WHOLE))
        given = self._given(state, records)
        rest, sums = run(given, batches, start // replicas, list(sums), count, coefficient)
        return sums, *self._taken(state, rest)

    def _loop(
        self,
        form: LoopForm,
        rounds: Any,
        carry: Any,
        batches: Any,
        first: Any,
        count: Any,
        coefficient: Any,
        first_record: Any,
    ) -> Any:
        """Runs this replica's steps. `count` is None where every round is full."""
        trainable, optimizer, non_trainable, metrics, records, sums = carry
        me, replicas = lax.axis_index(REPLICA), self._plan.replicas
        rules, logs = self._step.rules, self._logs

        def body(turn: Any, carry: Any) -> Any:
            non_trainable, metrics, records, sums = carry
            left = None if count is None else count - turn * replicas
            active = None if left is None else me < left
            steps = replicas if left is None else jnp.minimum(left, replicas)
            batch = jax.tree.map(lambda leaf: leaf[0], batch_at(batches, first + turn))
            begun = follow.begin(rules, non_trainable, me)
            gradients, ended, new, result = self._step.run(
                trainable, optimizer, begun, metrics, batch
            )
            non_trainable = follow.end(rules, non_trainable, ended, active, steps)
            if active is not None:
                gradients = [jnp.where(active, g, jnp.zeros_like(g)) for g in gradients]
                new = [jnp.where(active, n, o) for n, o in zip(new, metrics, strict=True)]
            sums = self._accumulator.add(sums, gradients, coefficient)
            records = logs.record(records, first_record + turn, new, result, active)
            return non_trainable, new, records, sums

        return repeat(body, (non_trainable, [m[0] for m in metrics], records, sums), rounds, form)

    def _agreed(self, rest: Any, sums: Any, active: Any) -> tuple[Any, Any]:
        """Returns what a replica gives back: values that all share, its metrics, its records.

        Args:
            rest: what its loop ended with.
            sums: gradients to add up over replicas; None if they stay each replica's own.
            active: how many replicas have had a batch.
        """
        non_trainable, metrics, records = rest
        rules = self._step.rules
        shares = follow.shares(rules, non_trainable, lax.axis_index(REPLICA), active)
        if sums is None:
            added = add_up(shares, self._plan)
        else:
            sums, added = self._reduction.add_up(sums, shares)
        agreed = follow.merged(rules, non_trainable, added, active)
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

    def _under_mesh(self, function: Any, sums: Any, more: Any = None) -> Any:
        records = self._logs.layout
        return jax.shard_map(
            function,
            mesh=self._plan.group.mesh,
            in_specs=(
                (WHOLE, WHOLE, WHOLE, PARTS, records),
                PartitionSpec(None, REPLICA),
                WHOLE,
                *(more or (WHOLE,)),
            ),
            out_specs=((WHOLE, PARTS, records), sums),
            check_vma=False,
        )
