"""What the layers of a model cost: for balancing its stages, and for their summary."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import keras

from millrace._compat.jaxpr import trace
from millrace.errors import ModelError, OptionError
from millrace.pipelines.assignment.assignment import Assignment, assign, scoped_stages
from millrace.pipelines.assignment.balance import balance
from millrace.pipelines.assignment.calls import (
    LayerCall,
    find_calls,
    leaf_edges,
    leaves,
    marked_calls,
)
from millrace.pipelines.assignment.summary import StageCost, summary_lines
from millrace.pipelines.assignment.watch import built_arguments
from millrace.recomputation.costs import flops_of_calls, shares

ROWS = 32  # of the batch that costs are counted for; a `None` axis elsewhere has this length too


def balanced(model: Any, word: str, num_stages: int | None) -> Assignment:
    """Returns the assignment that shares out the FLOPs of forward and backward best.

    Raises:
        OptionError: if the word is not "auto", or the number of stages is missing or impossible.
        ModelError: if the model is not built.
    """
    if word.lower() != "auto":
        raise OptionError(
            f"The assignment is a list of stages or 'auto'. Received: {word!r}. Set "
            "set_pipeline_stage_assignment('auto', num_stages=2)."
        )
    if num_stages is None:
        raise OptionError(
            "set_pipeline_stage_assignment('auto') needs the number of stages. Set num_stages=2 or "
            "more: as many as there are devices."
        )
    calls = find_calls(model)
    flops = call_flops(model, calls)
    return assign(calls, balance(flops, leaf_edges(calls), num_stages))


def stage_summary(model: Any, assignment: Assignment | None, line_length: int | None) -> list[str]:
    """Returns the lines of the summary, with the cost of stages where they can be counted."""
    calls = find_calls(model)
    stages: Sequence[int | None] | None = None
    if assignment is not None:
        stages = scoped_stages(calls) if assignment.stages is None else assignment.stages
    known = [stage for stage in stages or () if stage is not None]
    can_count = model.built and known and len(known) == len(leaves(calls))
    costs = _stage_costs(model, calls, known) if can_count else None
    return summary_lines(model, calls, stages, line_length, costs)


def call_flops(model: Any, calls: Sequence[LayerCall]) -> list[float]:
    """Returns the FLOPs of each leaf call for a batch of 32 rows, forward and backward.

    Raises:
        ModelError: if the model is not built.
    """
    if not model.built:
        raise ModelError(
            f"The costs of the layers of {model.name!r} depend on the shapes of its data, and it "
            "is not built. Begin it with keras.Input(shape), or call model.build(input_shape)."
        )
    args, kwargs = _arguments(model)

    def loss(trainable: Any, non_trainable: Any, args: Any) -> Any:
        outputs, _ = model.stateless_call(trainable, non_trainable, *args, **kwargs)
        leaves = [
            leaf for leaf in jax.tree.leaves(outputs) if jnp.issubdtype(leaf.dtype, jnp.inexact)
        ]
        return sum(jnp.sum(leaf.astype(jnp.float32)) for leaf in leaves)

    with marked_calls(model, calls):
        graph, _ = trace(
            jax.value_and_grad(loss),
            _specs(model.trainable_variables),
            _specs(model.non_trainable_variables),
            args,
        )
    return flops_of_calls(graph, len(leaves(calls)))


def _arguments(model: Any) -> tuple[Any, dict[str, Any]]:
    """Returns specs of what the model is called with."""
    args, kwargs = built_arguments(model)

    def spec(tensor: Any) -> jax.ShapeDtypeStruct:
        shape = tuple(ROWS if length is None else length for length in tensor.shape)
        return jax.ShapeDtypeStruct(shape, tensor.dtype)

    args = jax.tree.map(spec, args, is_leaf=lambda x: isinstance(x, keras.KerasTensor))
    return args, kwargs


def _stage_costs(model: Any, calls: Sequence[LayerCall], stages: Sequence[int]) -> list[StageCost]:
    flops = [0.0] * (max(stages) + 1)
    parameters: list[dict[int, int]] = [{} for _ in flops]
    for leaf, stage, cost in zip(leaves(calls), stages, call_flops(model, calls), strict=True):
        flops[stage] += cost
        for variable in getattr(leaf.operation, "weights", []):
            # By identity: a layer that is called twice has its weights once.
            parameters[stage][id(variable)] = math.prod(variable.shape)
    return [
        StageCost(sum(sizes.values()), cost, share)
        for sizes, cost, share in zip(parameters, flops, shares(flops), strict=True)
    ]


def _specs(variables: Any) -> list[jax.ShapeDtypeStruct]:
    return [jax.ShapeDtypeStruct(variable.shape, variable.dtype) for variable in variables]
