"""The rules by which replicas merge their state, read off the traced step.

    unchanged    the same on every replica, and stays so
    counter      a step adds a fixed number: the seed of a dropout layer, a number of calls
    averaged     moving statistics: those of the replicas differ, and their mean continues
    last         whole numbers that are no counters: those of the last batch continue

Counters continue as if the batches had come one after the other: replica `r` begins `r` steps
ahead, and all continue from `replicas` steps later. So a batch gets the same dropout mask as on
one device, and no two replicas share a mask.
"""

import enum
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import keras
import numpy as np
from jax.extend.core import Literal

from millrace._compat.batch_moments import moments_over
from millrace._compat.jaxpr import (
    Graph,
    Var,
    as_function,
    is_literal,
    primitive_counts,
    spec_of,
    trace,
    used,
    variables,
)
from millrace.base.devices import REPLICA
from millrace.base.pytrees import ArrayTree, SpecTree
from millrace.programs.plan import Mode, Plan
from millrace.programs.steps.program import batch_specs
from millrace.programs.steps.state import State
from millrace.programs.steps.step import make_gradient_step, make_step
from millrace.programs.steps.tapped_step import make_tapped_step
from millrace.programs.taps.taps import Tapped, collection_open


# Nobody declares these: a layer of the user's that keeps a seed or a mean is merged as Keras's own
# are, since what its step does to the value is in the trace.
class MergeRule(enum.Enum):
    """The rule that makes one value of those of all replicas after a round."""

    UNCHANGED = "unchanged"
    COUNTER = "counter"
    AVERAGED = "averaged"
    LAST = "last"


@dataclass(frozen=True, slots=True)
class Rule:
    """The merge rule of one variable."""

    merge: MergeRule
    step: Any = None  # number, or array of numbers, that a step adds to a counter

    @property
    def differs(self) -> bool:
        """Whether the values of replicas differ until an update ends."""
        return self.merge in (MergeRule.AVERAGED, MergeRule.LAST)


def find_rule(graph: Graph, before: Var | None, after: Var | Literal) -> Rule:
    """Finds the rule of a value of the state in a traced step.

    Args:
        graph: the step.
        before: variable of the value before the step; None if the step does not read it.
        after: variable of the value after the step, or a literal.
    """
    if after is before:
        return Rule(MergeRule.UNCHANGED)
    # Statistics batch by batch, as on one device, would make replicas wait for each other in every
    # step; averaged, they meet once per update. This comes before counters, which have to be whole
    # numbers: (x + 0.1) - x is not the same for every x, so two starts would prove nothing.
    if jnp.issubdtype(spec_of(after).dtype, jnp.inexact):
        return Rule(MergeRule.AVERAGED)
    if before is not None and not is_literal(after):
        step = _added(used(graph, [after]), before)
        if step is not None:
            return Rule(MergeRule.COUNTER, step)
    return Rule(MergeRule.LAST)


def _added(graph: Graph, before: Var) -> np.ndarray | None:
    """Returns the number that `graph` adds to its one input; None if it does anything else."""
    # A value that also follows from the batch, or from another value, is no counter; if it follows
    # from itself alone, running that part of the step tells more than reading its equations would:
    # `x + 1`, `x - (-1)` and a loop that adds are the same here.
    spec = spec_of(before)
    shape, dtype = spec.shape, spec.dtype
    if graph.invars != (before,) or dtype == jnp.bool_:
        return None
    run = as_function(graph)
    # From 0 alone, `2 * x + 1` and `max(x, 1)` would count as adding 1. The second start is any
    # number far away.
    starts = [np.zeros(shape, dtype), np.full(shape, 12345, dtype)]
    # Where a trace is under way, `run` would return tracers.
    with jax.ensure_compile_time_eval():
        ends = [np.asarray(run(start)[0]) for start in starts]
    added = [end - start for start, end in zip(starts, ends, strict=True)]
    return added[0] if np.array_equal(*added) else None


def begin(
    rules: Sequence[Rule], values: Sequence[jax.Array], before: jax.Array | int
) -> list[jax.Array]:
    """Returns the values with which this replica's step begins.

    Args:
        rules: of the values.
        values: with which the round begins.
        before: steps of the round before this replica's.
    """
    return [
        value + (rule.step * before).astype(value.dtype)
        if rule.merge is MergeRule.COUNTER
        else value
        for rule, value in zip(rules, values, strict=True)
    ]


def end(
    rules: Sequence[Rule],
    before: Sequence[jax.Array],
    after: Sequence[jax.Array],
    active: jax.Array | None,
    steps: jax.Array | int,
) -> list[jax.Array]:
    """Returns the values with which this replica begins the next round.

    Args:
        rules: of the values.
        before: values with which the round began.
        after: values after this replica's step, which began with those of `begin`.
        active: whether this replica had a batch in the round; None if all had one.
        steps: batches in the round.
    """
    going_on = []
    # Nothing is exchanged here. A counter is computed from where the round began, so it is the same
    # on every replica without being sent; the others differ until the update ends.
    for rule, old, new in zip(rules, before, after, strict=True):
        if rule.merge is MergeRule.UNCHANGED:
            going_on.append(old)
        elif rule.merge is MergeRule.COUNTER:
            going_on.append(old + (rule.step * steps).astype(old.dtype))
        else:
            going_on.append(new if active is None else jnp.where(active, new, old))
    return going_on


def shares(
    rules: Sequence[Rule], values: Sequence[jax.Array], had: jax.Array, last: jax.Array
) -> list[jax.Array]:
    """Returns this replica's terms of the sums from which `merged` makes the new values.

    Args:
        rules: of the values.
        values: this replica's.
        had: whether it had a batch.
        last: whether it had the last one.
    """
    terms = []
    # Both rules are written as sums, so that they travel in the exchange of the gradients. Which
    # replica had the last batch is a number in the program: a broadcast from it would be an
    # exchange of its own, and its source is fixed when the program is compiled.
    for rule, value in zip(rules, values, strict=True):
        if rule.merge is MergeRule.AVERAGED:
            # bfloat16 has 8 bits, of which a sum over eight replicas may lose three.
            wide = value.astype(jnp.promote_types(value.dtype, jnp.float32))
            terms.append(jnp.where(had, wide, jnp.zeros_like(wide)))
        elif rule.merge is MergeRule.LAST:
            # One dtype for all whole numbers, since arrays of one dtype are exchanged as one.
            mine = jnp.where(last, value, jnp.zeros_like(value))
            terms.append(mine.astype(jnp.int32))
    return terms


def merged(
    rules: Sequence[Rule],
    values: Sequence[jax.Array],
    sums: Sequence[jax.Array],
    active: jax.Array | int,
) -> list[jax.Array]:
    """Returns the new values, the same on every replica.

    Args:
        rules: of the values.
        values: this replica's.
        sums: of `shares` over all replicas.
        active: number of replicas that had a batch.
    """
    left = iter(sums)
    new = []
    for rule, value in zip(rules, values, strict=True):
        if rule.merge is MergeRule.AVERAGED:
            value = (next(left) / active).astype(value.dtype)
        elif rule.merge is MergeRule.LAST:
            value = next(left).astype(value.dtype)
        new.append(value)
    return new


class StepOutput(NamedTuple):
    """The values that one replica's step returns."""

    gradients: Sequence[jax.Array]  # none outside of training
    non_trainable: Sequence[jax.Array]
    metrics: Sequence[jax.Array]
    result: ArrayTree  # logs, or outputs when predicting
    tapped: Tapped


class TracedStep:
    """A step of a model: gradients when training, outputs or logs, and the state that it changes.

    Its arguments include only those optimizer values that it reads, such as the factor of loss
    scaling: with sharded optimizer state, all others would have to be gathered.
    """

    def __init__(
        self, model: keras.Model, plan: Plan, state: State, earlier: Sequence[SpecTree] = ()
    ):
        """Traces the step.

        Args:
            model: a compiled Keras model.
            plan: has the mode and the specs of a batch.
            state: specs of the values of one replica.
            earlier: specs of the gradients of earlier turns; see `OwnStep`.
        """
        trains = plan.mode is Mode.TRAIN
        make = make_tapped_step(model, plan) if plan.tapped else _untapped(model, plan)
        self._synchronizes = trains and plan.accumulation.synchronized_statistics

        def step(
            state: State, batch: ArrayTree, active: jax.Array | None, earlier: Sequence[ArrayTree]
        ) -> StepOutput:
            arguments = (state, batch, earlier) if earlier else (state, batch)
            with nullcontext() if active is None else moments_over(REPLICA, active):
                (*gradients, new, result), tapped = make(*arguments)
            changed = list(new.non_trainable), list(new.metric)
            return StepOutput(list(gradients[0]) if trains else [], *changed, result, tapped)

        with collection_open(keeps=False) as tapped:
            active = jax.ShapeDtypeStruct((), jnp.bool_) if self._synchronizes else None
            axes = [(REPLICA, plan.replicas)] if self._synchronizes else []
            specs = (state, batch_specs(plan.batch), active, earlier)
            graph, specs = trace(step, *specs, axes=axes)
        # Whether the model taps values itself, which are carried out only if the plan says so.
        self.taps_values = bool(tapped)
        self.result, self.tapped = specs.result, specs.tapped
        self._tree = jax.tree.structure(specs)
        names = [(role, index) for role, part in state.items() for index in range(len(part))]
        slots = dict(zip(names, graph.invars, strict=False))
        read = {v for equation in graph.equations for v in variables(equation.invars)}
        read.update(variables(graph.outvars))
        self.optimizer = tuple(
            i for (role, i), var in slots.items() if role == "optimizer" and var in read
        )
        # Read off the trace as well: what an optimizer looks up to scale a loss is its own affair.
        left_out = {
            var
            for (role, i), var in slots.items()
            if role == "optimizer" and i not in self.optimizer
        }
        invars = tuple(var for var in graph.invars if var not in left_out)
        self._run = as_function(Graph(invars, graph.outvars, graph.equations, graph.constants))
        first = len(specs.gradients)
        self.rules: list[Rule] = [
            find_rule(graph, slots["non_trainable", i], graph.outvars[first + i])
            for i in range(len(state.non_trainable))
        ]
        self.primitives = primitive_counts(graph.equations)

    def run(
        self,
        state: State,
        batch: ArrayTree,
        active: jax.Array | None,
        earlier: Sequence[ArrayTree] = (),
    ) -> StepOutput:
        """Runs one step.

        Args:
            state: of this replica, with those values of the optimizer whose indices are in
                `self.optimizer`.
            batch: of this replica.
            active: whether this replica has a batch; None if all have one.
            earlier: gradients of earlier turns.
        """
        arguments = jax.tree.leaves((state, batch))
        # Statistics over all replicas have to leave those out that have no batch. Nothing else in a
        # step asks, so the argument is only there where they are.
        if self._synchronizes:
            arguments.append(jnp.bool_(True) if active is None else active)
        arguments += jax.tree.leaves(earlier)
        return jax.tree.unflatten(self._tree, self._run(*arguments))


def _untapped(model: keras.Model, plan: Plan) -> Callable[..., tuple[Any, Tapped]]:
    trains = plan.mode is Mode.TRAIN
    make: Any = make_gradient_step(model, plan) if trains else make_step(model, plan.mode)
    return lambda *arguments: (make(*arguments), Tapped())
