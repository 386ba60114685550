"""Passes of one replica -> what every replica runs; under the mesh's axis, with arrays `[1, ...]`.

Which replicas have a batch is an argument, `steps`: the first that has, and how many have. Those
without one compute with what is there, and keep none of it.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from millrace.devices import REPLICA
from millrace.pipelines.programs.stage_taps import across_rounds
from millrace.replicas import state_rules
from millrace.replicas.state import own_part, with_axis
from millrace.replicas.state_rules import MergeRule, Rule

Function = Callable[..., Any]


def forward_on_replicas(
    function: Function, rules: Sequence[Rule | None], whole: Sequence[bool], show: Function
) -> Function:
    """Returns the forward of every replica.

    Args:
        function: that of one.
        rules: how each value that it changes goes on.
        whole: which of these all replicas share.
        show: makes the results of one replica those of all, given whether it had a batch.
    """

    def forward(
        weights: Any, fixed: Any, changing: Any, batch: Any, carried: Any, steps: Any
    ) -> Any:
        before = lax.axis_index(REPLICA) - steps[0]
        active = (before >= 0) & (before < steps[1])
        old = [v if shared else v[0] for v, shared in zip(changing, whole, strict=True)]
        known = [rule or Rule(MergeRule.LAST) for rule in rules]
        begun = state_rules.begin(known, old, before)
        sent, new, made, residuals = function(
            weights, fixed, begun, own_part(batch), own_part(carried)
        )
        new = state_rules.end(known, old, new, active, steps[1])
        new = [v if shared else v[None] for v, shared in zip(new, whole, strict=True)]
        return with_axis(sent), new, show(made, active, steps), with_axis(residuals)

    return forward


def pass_on_replicas(
    function: Function, sums: int | None, result: int | None, gather: bool
) -> Function:
    """Returns another pass of every replica.

    Args:
        function: that of one.
        sums: place of the accumulated gradients among its arguments, to which only replicas with
            a batch add; None where there are none.
        result: their place among its results, before what is tapped; None if they are all.
        gather: whether every replica needs all that is tapped.
    """

    def run(weights: Any, *given: Any) -> Any:
        if sums is None:
            return with_axis(function(weights, *map(own_part, given)))
        *split, coefficient, steps = given
        own = list(map(own_part, split))
        made = function(weights, *own, coefficient)
        added = made if result is None else made[result]
        place = lax.axis_index(REPLICA) - steps[0]
        active = (place >= 0) & (place < steps[1])
        kept = [jnp.where(active, n, o) for n, o in zip(added, own[sums - 1], strict=True)]
        if result is None:
            return with_axis(kept)
        tapped = (across_rounds(arrays, gather) for arrays in made[result + 1 :])
        return *with_axis((*made[:result], kept)), *tapped

    return run
