"""FLOPs and parameters of a model's layers, to balance its stages and to print them."""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import keras
from jax.typing import ArrayLike

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
from millrace.pipelines.assignment.observed_calls import Arguments, built_arguments
from millrace.pipelines.assignment.summary import StageCost, summary_lines
from millrace.pytrees import ArrayTree, Spec
from millrace.recomputation.costs import flops_of_calls, shares

ROWS = 32  # of the batch for which costs are counted; also the length of any other `None` axis


def balanced(model: keras.Model, word: str, num_stages: int | None) -> Assignment:
    """Returns the assignment that balances the FLOPs of forward and backward over the stages.

    Raises:
        OptionError: if the word is not "auto", or the number of stages is missing or too large.
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


def stage_summary(
    model: keras.Model, assignment: Assignment | None, line_length: int | None
) -> list[str]:
    """Returns the lines of the summary, with the costs of the stages of a built model."""
    calls = find_calls(model)
    stages: Sequence[int | None] | None = None
    if assignment is not None:
        stages = scoped_stages(calls) if assignment.stages is None else assignment.stages
    assigned = [stage for stage in stages or () if stage is not None]
    can_count = model.built and assigned and len(assigned) == len(leaves(calls))
    costs = _stage_costs(model, calls, assigned) if can_count else None
    return summary_lines(model, calls, stages, line_length, costs)


def call_flops(model: keras.Model, calls: Sequence[LayerCall]) -> list[float]:
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

    def loss(
        trainable: list[jax.Array], non_trainable: list[jax.Array], args: Sequence[ArrayTree]
    ) -> ArrayLike:
        outputs = model.stateless_call(trainable, non_trainable, *args, **kwargs)[0]
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


def _arguments(model: keras.Model) -> Arguments:
    """Returns the specs of the model's arguments."""
    args, kwargs = built_arguments(model)

    def spec(tensor: keras.KerasTensor) -> Spec:
        shape = tuple(ROWS if length is None else length for length in tensor.shape)
        return jax.ShapeDtypeStruct(shape, tensor.dtype)

    args = jax.tree.map(spec, args, is_leaf=lambda x: isinstance(x, keras.KerasTensor))
    return args, kwargs


def _stage_costs(
    model: keras.Model, calls: Sequence[LayerCall], stages: Sequence[int]
) -> list[StageCost]:
    flops = [0.0] * (max(stages) + 1)
    parameters: list[dict[int, int]] = [{} for _ in flops]
    for leaf, stage, cost in zip(leaves(calls), stages, call_flops(model, calls), strict=True):
        flops[stage] += cost
        for variable in getattr(leaf.operation, "weights", []):
            # By identity: the weights of a layer that is called twice count once.
            parameters[stage][id(variable)] = math.prod(variable.shape)
    return [
        StageCost(sum(sizes.values()), cost, share)
        for sizes, cost, share in zip(parameters, flops, shares(flops), strict=True)
    ]


def _specs(variables: Sequence[keras.Variable]) -> list[Spec]:
    return [jax.ShapeDtypeStruct(variable.shape, variable.dtype) for variable in variables]
