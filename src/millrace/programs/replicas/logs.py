"""Logs of the steps of several replicas.

    mean    the logs of all batches together: metric states are added before logs follow from them
    sum, list, none    made of every replica's own logs: their sum, all of them, those of the last
                       replica that had a batch

Logs that do not follow from metric states, because the user overrides `compute_metrics`, are
computed by each replica; `mean` reports their mean.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import keras
from jax import lax
from jax.sharding import PartitionSpec
from jax.typing import ArrayLike

from millrace._compat.keras_steps import metric_logs
from millrace.base.devices import REPLICA
from millrace.base.options import MetricReduction
from millrace.base.pytrees import ArrayTree, SpecTree
from millrace.programs.plan import Mode, Plan
from millrace.programs.replicas.state_rules import StepOutput
from millrace.programs.steps.program import merge_steps
from millrace.programs.steps.repetition import Index
from millrace.programs.steps.state import State
from millrace.programs.steps.step import logs_follow_from_metrics
from millrace.programs.taps.entries import record_at


class ReplicaLogs:
    """Carries logs or outputs of steps through the programs of one plan."""

    def __init__(self, model: keras.Model, plan: Plan, result: SpecTree):
        """Decides which records a loop carries.

        Args:
            model: a compiled Keras model.
            plan: describes the programs.
            result: specs of the result of one replica's step.
        """
        self._model, self._plan, self._spec = model, plan, result
        self._follow = logs_follow_from_metrics(model, plan.mode)
        self._at_end = self._follow and not plan.each_step
        self._reduction = plan.replication.metrics
        # Of the records, under the mesh and outside.
        self.layout = PartitionSpec(*[None] * plan.each_step, REPLICA)

    def first(self) -> Any:
        """Returns empty records: `[rounds, replicas, ...]`, `[replicas, ...]` or None."""
        if self._at_end:
            return None
        replicas = self._plan.replicas
        lead = (self._plan.records // replicas, replicas) if self._plan.each_step else (replicas,)
        return jax.tree.map(lambda s: jnp.zeros((*lead, *s.shape), s.dtype), self._spec)

    def record(
        self, records: ArrayTree, index: Index, output: StepOutput, active: jax.Array | None
    ) -> ArrayTree:
        """Adds the logs or outputs of this replica in one round; runs under the mesh's axis.

        Args:
            records: `[rounds, 1, ...]` or `[1, ...]`.
            index: index of the round in the call.
            output: values that this replica's step returned.
            active: whether this replica had a batch; None if all replicas had one.
        """
        if self._at_end:
            return None
        metrics, result = output.metrics, output.result
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

    def result(self, state: State, records: ArrayTree) -> Any:
        """Returns the result of a call: logs or outputs, of every step or of the last one."""
        plan = self._plan
        if self._at_end:
            if self._reduction is MetricReduction.MEAN:
                return metric_logs(self._model, state.metric)
            logs = jax.vmap(lambda m: metric_logs(self._model, m))(state.metric_parts)
            if self._reduction is MetricReduction.NONE:
                last = self._last_with_data(state.metric_parts)
                return jax.tree.map(lambda leaf: leaf[last], logs)
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

    def _last_with_data(self, parts: Sequence[jax.Array]) -> jax.Array:
        """Returns the last replica whose metrics have seen a batch, by comparison with a reset."""
        with keras.StatelessScope() as scope:
            self._model.reset_metrics()
            initial = [scope.get_current_value(v) for v in self._model.metrics_variables]
        seen = jnp.zeros(self._plan.replicas, bool).at[0].set(True)
        for values, before in zip(parts, initial, strict=True):
            changed = jnp.asarray(values) != (0 if before is None else before)
            seen |= changed.reshape(self._plan.replicas, -1).any(axis=1)
        return self._plan.replicas - 1 - jnp.argmax(seen[::-1])

    def _reduced(self, logs: ArrayTree, axis: int) -> Any:
        reduction = self._reduction
        if reduction is MetricReduction.LIST:
            return logs
        if reduction is MetricReduction.SUM:
            return jax.tree.map(lambda leaf: leaf.sum(axis), logs)
        if reduction is MetricReduction.MEAN:
            return jax.tree.map(lambda leaf: leaf.mean(axis).astype(leaf.dtype), logs)
        return jax.tree.map(lambda leaf: lax.index_in_dim(leaf, -1, axis, keepdims=False), logs)


def across_replicas(
    logs: ArrayTree,
    reduction: MetricReduction,
    active: jax.Array,
    steps: jax.Array,
    repeats: int | None,
) -> Any:
    """Reduces the logs of all replicas; runs under the mesh's axis.

    Args:
        logs: of this replica.
        reduction: how to reduce them.
        active: whether this replica had a batch.
        steps: `[2]`: the first replica that had a batch, and how many had one.
        repeats: length of a first axis along which the result is repeated; None for no such axis.
    """

    def one(value: ArrayLike) -> jax.Array:
        if reduction is MetricReduction.LIST:
            return lax.all_gather(value, REPLICA)
        if reduction is MetricReduction.NONE:
            wanted = lax.axis_index(REPLICA) == steps[0] + steps[1] - 1
            return lax.psum(jnp.where(wanted, value, jnp.zeros_like(value)), REPLICA)
        total = lax.psum(jnp.where(active, value, jnp.zeros_like(value)), REPLICA)
        return total if reduction is MetricReduction.SUM else total / steps[1]

    reduced = jax.tree.map(one, logs)
    if repeats is None:
        return reduced
    return jax.tree.map(lambda value: jnp.broadcast_to(value, (repeats, *value.shape)), reduced)


def side_by_side(outputs: Iterable[jax.Array], each_step: bool, gather: bool) -> list[jax.Array]:
    """Returns this replica's part of the outputs of all replicas; runs under the mesh's axis.

    Args:
        outputs: of this replica, `[rows, ...]`.
        each_step: whether replicas get an axis, `[1, rows, ...]`, instead of joining their rows.
        gather: whether every replica needs the outputs of all.
    """
    parts = [leaf[None] if each_step or not leaf.ndim else leaf for leaf in outputs]
    if not gather:
        return parts
    return [lax.all_gather(leaf, REPLICA, axis=0, tiled=True) for leaf in parts]
