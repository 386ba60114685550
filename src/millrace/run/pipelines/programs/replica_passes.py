"""The passes of a stage on every replica: under the mesh's axis, with arrays `[1, ...]`.

The argument `steps` says which replicas have a batch: the first that has one, and their number.
Replicas without a batch compute on arbitrary values and discard the results.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from millrace.base.devices import REPLICA
from millrace.programs.replicas import state_rules
from millrace.programs.replicas.placement import own_part, with_axis
from millrace.programs.replicas.state_rules import MergeRule, Rule
from millrace.run.pipelines.programs.split import Arrays
from millrace.run.pipelines.programs.stage_taps import across_rounds

# (results of one replica, whether it had a batch, steps) -> results of all
GatherResults = Callable[[Sequence[jax.Array], jax.Array, jax.Array], Arrays]


def forward_on_replicas(
    function: Callable[..., tuple[Arrays, Arrays, Arrays, Arrays]],
    rules: Sequence[Rule | None],
    whole: Sequence[bool],
    gather: GatherResults,
) -> Callable[..., tuple[Arrays, Arrays, Arrays, Arrays]]:
    """Returns the forward of every replica.

    Args:
        function: the forward of one replica.
        rules: for each value that it changes, how it continues after the micro-batch.
        whole: for each of these values, whether all replicas share it.
        gather: combines the results of all replicas.
    """

    def forward(
        weights: Arrays,
        fixed: Arrays,
        changing: Arrays,
        batch: Arrays,
        carried: Arrays,
        steps: jax.Array,
    ) -> tuple[Arrays, Arrays, Arrays, Arrays]:
        before = lax.axis_index(REPLICA) - steps[0]
        active = (before >= 0) & (before < steps[1])
        old = [v if shared else v[0] for v, shared in zip(changing, whole, strict=True)]
        own_rules = [rule or Rule(MergeRule.LAST) for rule in rules]
        begun = state_rules.begin(own_rules, old, before)
        sent, new, results, residuals = function(
            weights, fixed, begun, own_part(batch), own_part(carried)
        )
        new = state_rules.end(own_rules, old, new, active, steps[1])
        new = [v if shared else v[None] for v, shared in zip(new, whole, strict=True)]
        return with_axis(sent), new, gather(results, active, steps), with_axis(residuals)

    return forward


def pass_on_replicas(
    function: Callable[..., Any], sums: int | None, result: int | None, gather: bool
) -> Callable[..., Any]:
    """Returns a pass other than forward of every replica.

    Args:
        function: the pass of one replica.
        sums: index of the accumulated gradients among its arguments, to which only replicas with
            a batch add; None: it accumulates nothing.
        result: index of the accumulated gradients among its results, before the tapped values;
            None: they are the only result.
        gather: whether every replica needs the tapped values of all.
    """

    def run(weights: Arrays, *arguments: Any) -> Any:
        if sums is None:
            return with_axis(function(weights, *map(own_part, arguments)))
        *split, coefficient, steps = arguments
        own = list(map(own_part, split))
        results = function(weights, *own, coefficient)
        added = results if result is None else results[result]
        position = lax.axis_index(REPLICA) - steps[0]
        active = (position >= 0) & (position < steps[1])
        kept = [jnp.where(active, n, o) for n, o in zip(added, own[sums - 1], strict=True)]
        if result is None:
            return with_axis(kept)
        tapped = (across_rounds(arrays, gather) for arrays in results[result + 1 :])
        return *with_axis((*results[:result], kept)), *tapped

    return run
