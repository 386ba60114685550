"""What a step does to the values that no gradient changes, where several replicas do it at once.

    unchanged    whole on every replica, and stays so
    counter      a step adds a fixed number: the seed of a dropout layer, a number of calls
    averaged     moving statistics: each replica's differ, and their mean goes on
    last         whole numbers that are no counters: those of the last batch go on

Counters go on as if the batches had come one after the other: replica `r` begins `r` steps ahead,
and all go on from `replicas` steps later. So a batch has the dropout mask that it would have on
one device, and no two replicas have the same.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from millrace._compat.jaxpr import Graph, as_function, is_literal, used


class MergeRule(enum.Enum):
    """How the values of all replicas become one after a round."""

    UNCHANGED = "unchanged"
    COUNTER = "counter"
    AVERAGED = "averaged"
    LAST = "last"


@dataclass(frozen=True, slots=True)
class Rule:
    """How one value goes on."""

    merge: MergeRule
    step: Any = None  # what a step adds to a counter

    @property
    def differs(self) -> bool:
        """Whether replicas have values of their own until an update ends."""
        return self.merge in (MergeRule.AVERAGED, MergeRule.LAST)


def find_rule(graph: Graph, before: Any, after: Any) -> Rule:
    """Finds the rule of a value of the state in a traced step.

    Args:
        graph: the step.
        before: the variable of the value that goes in; None if the step does not read it.
        after: that of the value that comes out, or a literal.
    """
    if after is before:
        return Rule(MergeRule.UNCHANGED)
    if jnp.issubdtype(after.aval.dtype, jnp.inexact):
        return Rule(MergeRule.AVERAGED)
    if before is not None and not is_literal(after):
        step = _added(used(graph, [after]), before)
        if step is not None:
            return Rule(MergeRule.COUNTER, step)
    return Rule(MergeRule.LAST)


def _added(part: Graph, before: Any) -> np.ndarray | None:
    """Returns what `part` adds to its one input, None if it does anything else."""
    shape, dtype = before.aval.shape, before.aval.dtype
    if part.invars != (before,) or dtype == jnp.bool_:
        return None
    run = as_function(part)
    starts = [np.zeros(shape, dtype), np.full(shape, 12345, dtype)]
    with jax.ensure_compile_time_eval():
        ends = [np.asarray(run(start)[0]) for start in starts]
    added = [end - start for start, end in zip(starts, ends, strict=True)]
    return added[0] if np.array_equal(*added) else None


def begin(rules: Sequence[Rule], values: Sequence[Any], before: Any) -> list[Any]:
    """Returns what this replica's step is given; `before` are the round's steps before its own."""
    return [
        value + (rule.step * before).astype(value.dtype)
        if rule.merge is MergeRule.COUNTER
        else value
        for rule, value in zip(rules, values, strict=True)
    ]


def end(
    rules: Sequence[Rule], before: Sequence[Any], after: Sequence[Any], active: Any, steps: Any
) -> list[Any]:
    """Returns what goes on within this replica.

    Args:
        rules: of the values.
        before: what the round began with.
        after: what this replica's step made of what `begin` gave it.
        active: whether this replica had a batch in the round; None if all had.
        steps: batches in the round.
    """
    going_on = []
    for rule, old, new in zip(rules, before, after, strict=True):
        if rule.merge is MergeRule.UNCHANGED:
            going_on.append(old)
        elif rule.merge is MergeRule.COUNTER:
            going_on.append(old + (rule.step * steps).astype(old.dtype))
        else:
            going_on.append(new if active is None else jnp.where(active, new, old))
    return going_on


def shares(rules: Sequence[Rule], values: Sequence[Any], had: Any, last: Any) -> list[jax.Array]:
    """Returns what this replica gives towards the values that go on: they are added up.

    Args:
        rules: of the values.
        values: this replica's.
        had: whether it had a batch.
        last: whether it had the last one.
    """
    given = []
    for rule, value in zip(rules, values, strict=True):
        if rule.merge is MergeRule.AVERAGED:
            wide = value.astype(jnp.promote_types(value.dtype, jnp.float32))
            given.append(jnp.where(had, wide, jnp.zeros_like(wide)))
        elif rule.merge is MergeRule.LAST:
            mine = jnp.where(last, value, jnp.zeros_like(value))
            given.append(mine.astype(jnp.int32))
    return given


def merged(
    rules: Sequence[Rule], values: Sequence[Any], sums: Sequence[jax.Array], active: Any
) -> list[Any]:
    """Returns the values that go on, the same on every replica, given the sums of `shares`.

    `active` is how many replicas had a batch.
    """
    left = iter(sums)
    found = []
    for rule, value in zip(rules, values, strict=True):
        if rule.merge is MergeRule.AVERAGED:
            value = (next(left) / active).astype(value.dtype)
        elif rule.merge is MergeRule.LAST:
            value = next(left).astype(value.dtype)
        found.append(value)
    return found
