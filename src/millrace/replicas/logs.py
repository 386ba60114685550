"""What several replicas report of their steps, and what these have tapped.

    mean    the logs of all batches together: metric states are added before logs follow from them
    sum, list, none    made of every replica's own logs: their sum, all of them, those of the last
                       one that has had a batch

Logs that do not follow from metric states, of a `compute_metrics` of the user's own, are made by
each replica; their mean is the mean of these.

taps    [rounds, 1, ...] within a replica,  [rounds, replicas, ...] outside
"""

from typing import Any

import jax
import jax.numpy as jnp
import keras
from jax import lax
from jax.sharding import PartitionSpec

from millrace._compat.keras_steps import metric_logs
from millrace.devices import REPLICA
from millrace.options import MetricReduction
from millrace.plan import Mode, Plan
from millrace.steps.program import merge_steps
from millrace.steps.state import State
from millrace.steps.step import logs_follow_from_metrics
from millrace.taps.entries import record_at
from millrace.taps.taps import Tapped


class ReplicaLogs:
    """Carries the results of steps out of the programs of one plan."""

    def __init__(self, model: keras.Model, plan: Plan, result: Any):
        """Decides what a loop has to carry.

        Args:
            model: a compiled Keras model.
            plan: of the programs.
            result: specs of the result of one replica's step.
        """
        self._model, self._plan, self._spec = model, plan, result
        self._follow = logs_follow_from_metrics(model, plan.mode)
        self._at_end = self._follow and not plan.each_step
        self._reduction = plan.replication.metrics
        # Of the records, under the mesh and outside of it.
        self.layout = PartitionSpec(*[None] * plan.each_step, REPLICA)

    def first(self) -> Any:
        """Returns empty records: `[rounds, replicas, ...]`, or `[replicas, ...]`, or none."""
        if self._at_end:
            return None
        replicas = self._plan.replicas
        lead = (self._plan.records // replicas, replicas) if self._plan.each_step else (replicas,)
        return jax.tree.map(lambda s: jnp.zeros((*lead, *s.shape), s.dtype), self._spec)

    def record(self, records: Any, index: Any, metrics: Any, result: Any, active: Any) -> Any:
        """Adds what this replica has to report of round `index`; runs under the mesh's axis.

        Args:
            records: `[rounds, 1, ...]` or `[1, ...]`.
            index: of the round in the call.
            metrics: of this replica after the step.
            result: of its step.
            active: whether it had a batch; None if all replicas had.
        """
        if self._at_end:
            return None
        if self._follow and self._reduction is MetricReduction.MEAN:
            result = metric_logs(self._model, [lax.psum(value, REPLICA) for value in metrics])
        result = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], result)
        if self._plan.each_step:
            return record_at(records, index, result)
        return jax.tree.map(
            lambda old, new: jnp.where(True if active is None else active, new, old),
            records,
            result,
        )

    def result(self, state: State, records: Any) -> Any:
        """Returns the result of a call: logs or outputs; of every step, or of the last one."""
        plan = self._plan
        if self._at_end:
            metrics = list(state[-1])
            parts, merged = metrics[: len(metrics) // 2], metrics[len(metrics) // 2 :]
            if self._reduction is MetricReduction.MEAN:
                return metric_logs(self._model, merged)
            logs = jax.vmap(lambda m: metric_logs(self._model, m))(parts)
            if self._reduction is MetricReduction.NONE:
                return jax.tree.map(lambda leaf: leaf[self._last_with_data(parts)], logs)
            return self._reduced(logs, 0)
        if plan.mode is Mode.PREDICT:
            steps = jax.tree.map(lambda leaf: lax.collapse(leaf, 0, 2), records)
            return steps if plan.step_logs else jax.tree.map(merge_steps, steps)
        if not plan.each_step:
            return self._reduced(records, 0)
        # Each step of a round reports the logs after the round.
        return jax.tree.map(
            lambda leaf: jnp.repeat(leaf, plan.replicas, axis=0), self._reduced(records, 1)
        )

    def _last_with_data(self, parts: list[Any]) -> Any:
        """Returns the last replica whose metrics have seen a batch; those of all begin the same."""
        with keras.StatelessScope() as scope:
            self._model.reset_metrics()
            begun = [scope.get_current_value(v) for v in self._model.metrics_variables]
        seen = jnp.zeros(self._plan.replicas, bool).at[0].set(True)
        for part, before in zip(parts, begun, strict=True):
            changed = jnp.asarray(part) != (0 if before is None else before)
            seen |= changed.reshape(self._plan.replicas, -1).any(axis=1)
        return self._plan.replicas - 1 - jnp.argmax(seen[::-1])

    def _reduced(self, logs: Any, axis: int) -> Any:
        reduction = self._reduction
        if reduction is MetricReduction.LIST:
            return logs
        if reduction is MetricReduction.SUM:
            return jax.tree.map(lambda leaf: leaf.sum(axis), logs)
        if reduction is MetricReduction.MEAN:
            return jax.tree.map(lambda leaf: leaf.mean(axis).astype(leaf.dtype), logs)
        return jax.tree.map(lambda leaf: lax.index_in_dim(leaf, -1, axis, keepdims=False), logs)


def across_replicas(
    logs: Any, reduction: MetricReduction, active: Any, steps: Any, repeats: int | None
) -> Any:
    """Makes one of every replica's own logs; runs under the mesh's axis.

    Args:
        logs: of this replica.
        reduction: what to report.
        active: whether it had a batch.
        steps: the first replica that had, and how many had.
        repeats: as many times as the result is to be there, `[repeats, ...]`; None: without axis.
    """

    def one(value: Any) -> Any:
        if reduction is MetricReduction.LIST:
            return lax.all_gather(value, REPLICA)
        if reduction is MetricReduction.NONE:
            wanted = lax.axis_index(REPLICA) == steps[0] + steps[1] - 1
            return lax.psum(jnp.where(wanted, value, jnp.zeros_like(value)), REPLICA)
        total = lax.psum(jnp.where(active, value, jnp.zeros_like(value)), REPLICA)
        return total if reduction is MetricReduction.SUM else total / steps[1]

    found = jax.tree.map(one, logs)
    if repeats is None:
        return found
    return jax.tree.map(lambda value: jnp.broadcast_to(value, (repeats, *value.shape)), found)


def side_by_side(outputs: Any, each_step: bool, gather: bool) -> list[Any]:
    """Returns a replica's outputs as part of those of all; runs under the mesh's axis.

    Args:
        outputs: of this replica, `[rows, ...]`.
        each_step: whether each replica's are to be an entry of their own.
        gather: whether every replica needs all of them.
    """
    led = [leaf[None] if each_step or not leaf.ndim else leaf for leaf in outputs]
    return [lax.all_gather(leaf, REPLICA, axis=0, tiled=True) for leaf in led] if gather else led


class ReplicaRecords:
    """Carries logs or outputs, and taps, through the programs of one plan."""

    def __init__(self, logs: ReplicaLogs, tapped: Tapped, rounds: int, replicas: int):
        """Prepares room.

        Args:
            logs: what reports steps.
            tapped: specs of what one replica's step taps.
            rounds: of a call whose taps are returned, at most.
            replicas: that run them.
        """
        self._logs, self._tapped = logs, tapped
        self._lead = (rounds, replicas)
        # Under the mesh and outside of it.
        self.layout = (logs.layout, PartitionSpec(None, REPLICA))

    def first(self) -> tuple[Any, Tapped]:
        """Returns empty records."""
        taps = jax.tree.map(lambda s: jnp.zeros((*self._lead, *s.shape), s.dtype), self._tapped)
        return self._logs.first(), taps

    def record(
        self, records: Any, index: Any, metrics: Any, result: Any, tapped: Tapped, active: Any
    ) -> tuple[Any, Tapped]:
        """Adds round `index` of this replica; runs under the mesh's axis."""
        logs, taps = records
        logs = self._logs.record(logs, index, metrics, result, active)
        if tapped:
            taps = record_at(taps, index, jax.tree.map(lambda leaf: leaf[None], tapped))
        return logs, taps

    def result(self, state: State, records: Any) -> tuple[Any, Tapped]:
        """Returns the result of a call, and the taps of its steps."""
        logs, taps = records
        return self._logs.result(state, logs), taps
