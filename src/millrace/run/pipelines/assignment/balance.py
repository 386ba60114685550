"""The assignment "auto": the cost of each layer call, and stages of equal cost.

    call  cost  takes           2 stages     a d | b c e     costs 5 5
    a     4                                  but a b | c d e costs 7 3
    b     3     a
    c     1     b
    d     1     a
    e     1     c d

A stage can end after any set of calls that contains all their producers (a "downset"). Models are
chains with short branches and have few of these sets, so an exhaustive search finds the best chain
of them. Where there are many, only the cuts of the execution order are searched; a model without
branches has no others.
"""

import math
from collections import Counter
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import keras
import numpy as np
from jax.typing import ArrayLike

from millrace._compat.jaxpr import trace
from millrace._compat.keras_graph import graph_of, has_own_call, input_structure, takes_training
from millrace._compat.keras_layers import layers_without_jit
from millrace.base.pytrees import ArrayTree, Spec, SpecTree
from millrace.errors import ModelError, OptionError
from millrace.programs.feeds.block import batch_spec
from millrace.programs.plan import BatchSpec
from millrace.programs.recomputation.costs import flops_of_calls, shares
from millrace.programs.steps.program import batch_specs
from millrace.run.pipelines.assignment.assignment import Assignment, assign, scoped_stages
from millrace.run.pipelines.assignment.layer_calls import (
    LayerCall,
    find_calls,
    leaf_edges,
    leaves,
    marked_calls,
)
from millrace.run.pipelines.assignment.shared_state import edges_of_groups, groups_by_state
from millrace.run.pipelines.assignment.summary import StageCost, summary_lines

ROWS = 32  # of a batch whose other lengths the model's inputs declare
NAMES = 4  # of layers that an error lists


def open_assignment(model: keras.Model, num_stages: int) -> Assignment:
    """Returns an assignment to so many stages, which a batch is still to decide.

    Raises:
        OptionError: if the number of stages is too large: calls that change the same state are on
            one stage. A subclassed model that is not built has no calls yet.
        ModelError: if the model has layers that cannot be compiled.
    """
    _check_compiled(model)
    if model.built or not has_own_call(model):
        calls = find_calls(model)
        balanced_by(model, calls, [1.0] * len(leaves(calls)), num_stages)
    return Assignment((), None, num_stages, is_open=True)


def balanced(
    model: keras.Model,
    num_stages: int,
    batch: BatchSpec,
    calls: Sequence[LayerCall] | None = None,
) -> Assignment:
    """Returns the assignment that balances the FLOPs of forward and backward over the stages.

    Args:
        model: a built model.
        num_stages: number of stages.
        batch: for whose shapes FLOPs are counted; of x alone, or of x, y and sample weights.
        calls: of the model, if they are known.

    Raises:
        OptionError: if the number of stages is too large.
        ModelError: if the model is not built, or has layers that cannot be compiled.
    """
    _check_compiled(model)
    calls = find_calls(model) if calls is None else calls
    return balanced_by(model, calls, call_flops(model, calls, batch), num_stages)


def _check_compiled(model: keras.Model) -> None:
    uncompiled = layers_without_jit(model)
    if uncompiled:
        raise ModelError(
            f"{model.name!r} cannot be cut into stages, which are compiled programs: its layers "
            f"{uncompiled} do not support compilation. Move these layers in front of the model, "
            "into the data set, or run it in one piece on one device: Strategy(devices=1), "
            "without pipeline stages."
        )


def declared_batch(model: keras.Model) -> BatchSpec | None:
    """Returns a batch of 32 rows as the inputs of a model declare it; None if lengths are open.

    A Sequential without declared inputs has those of the first batch that it saw, rows included.
    """
    graph = None if has_own_call(model) else graph_of(model)
    if graph is None or not all(_has_open_rows_only(each) for each in graph.inputs):
        return None
    rows = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((ROWS, *x.shape[1:]), x.dtype),
        input_structure(graph),
        is_leaf=lambda x: isinstance(x, keras.KerasTensor),
    )
    return batch_spec((rows,))


def _has_open_rows_only(tensor: keras.KerasTensor) -> bool:
    shape, is_text = tuple(tensor.shape), tensor.dtype == "string"
    return shape[:1] == (None,) and None not in shape[1:] and not is_text


def balanced_by(
    model: keras.Model, calls: Sequence[LayerCall], costs: Sequence[float], num_stages: int
) -> Assignment:
    """Returns the assignment that balances costs of the leaf calls of a model, in any unit.

    Raises:
        OptionError: if the number of stages is too large.
    """
    edges = leaf_edges(calls)
    groups = groups_by_state(leaves(calls), edges)
    _check_groups(model, calls, groups, num_stages)
    of_groups = np.bincount(groups, weights=costs).tolist()
    stages = balance(of_groups, edges_of_groups(groups, edges), num_stages)
    return assign(calls, [stages[group] for group in groups])


def _check_groups(
    model: keras.Model, calls: Sequence[LayerCall], groups: Sequence[int], num_stages: int
) -> None:
    count, flat = max(groups, default=-1) + 1, leaves(calls)
    if count < num_stages <= len(groups):
        sizes = Counter(groups)
        names = dict.fromkeys(
            call.name for call, group in zip(flat, groups, strict=True) if sizes[group] > 1
        )
        remedy = f"set num_stages={count}" if count > 1 else "leave the model in one piece"
        raise OptionError(
            f"{model.name!r} cannot be cut into {num_stages} stages, only into {count}: the calls "
            f"of {list(names)[:NAMES]} change the same state or lie between calls that do, and "
            "state that changes with every micro-batch has one stage. Use a layer of its own for "
            f"each call, or {remedy}."
        )


def stage_summary(
    model: keras.Model,
    assignment: Assignment | None,
    batch: BatchSpec | None,
    line_length: int | None,
) -> list[str]:
    """Returns the lines of the summary, with the costs of the stages of a built model.

    Args:
        model: the model.
        assignment: its stages; None if there are none.
        batch: for which FLOPs are counted; None if it is unknown before `fit`.
        line_length: in characters; None for the default.
    """
    calls, is_open = find_calls(model), assignment is not None and assignment.is_open
    stages: Sequence[int | None] | None = None
    if assignment is not None and not is_open:
        stages = scoped_stages(calls) if assignment.stages is None else assignment.stages
    assigned = [stage for stage in stages or () if stage is not None]
    can_count = (
        model.built
        and assigned
        and len(assigned) == len(leaves(calls))
        and not layers_without_jit(model)  # which may not be traced, either
    )
    costs, more = None, list[str]()
    if can_count:
        costs = _stage_costs(model, calls, assigned, batch)
        if not has_own_call(model):  # whose flow of values shows only in a trace
            more += _crossing_lines(calls, assigned)
        if batch is not None:
            more.append(f"FLOPs: forward and backward of a batch {batch_spec(_inputs_of(batch))}")
    return [*summary_lines(model, calls, stages, line_length, costs, is_open), *more]


def _crossing_lines(calls: Sequence[LayerCall], stages: Sequence[int]) -> list[str]:
    """Returns for each stage a line with the calls of earlier stages whose values it takes."""
    flat, taken = leaves(calls), dict[int, dict[str, None]]()
    for stage, producers in zip(stages, leaf_edges(calls), strict=True):
        names = {flat[each].label: None for each in producers if stages[each] < stage}
        taken.setdefault(stage, {}).update(names)
    return [f"Stage {k} takes: {', '.join(taken[k])}" for k in sorted(taken) if taken[k]]


def call_flops(model: keras.Model, calls: Sequence[LayerCall], batch: BatchSpec) -> list[float]:
    """Returns the FLOPs of each leaf call for a batch, forward and backward.

    Raises:
        ModelError: if the model is not built.
    """
    if not model.built:
        raise ModelError(
            f"The costs of the layers of {model.name!r} depend on the shapes of its weights, and "
            "it is not built. Begin it with keras.Input(shape), or call model.build(input_shape)."
        )
    kwargs = {"training": True} if has_own_call(model) and takes_training(model) else {}

    def loss(trainable: list[jax.Array], non_trainable: list[jax.Array], x: ArrayTree) -> ArrayLike:
        outputs = model.stateless_call(trainable, non_trainable, x, **kwargs)[0]
        leaves = [
            leaf for leaf in jax.tree.leaves(outputs) if jnp.issubdtype(leaf.dtype, jnp.inexact)
        ]
        return sum(jnp.sum(leaf.astype(jnp.float32)) for leaf in leaves)

    with marked_calls(model, calls):
        graph, _ = trace(
            jax.value_and_grad(loss),
            _specs(model.trainable_variables),
            _specs(model.non_trainable_variables),
            _inputs_of(batch),
        )
    return flops_of_calls(graph, len(leaves(calls)))


def _inputs_of(batch: BatchSpec) -> SpecTree:
    return keras.utils.unpack_x_y_sample_weight(batch_specs(batch))[0]


def _stage_costs(
    model: keras.Model,
    calls: Sequence[LayerCall],
    stages: Sequence[int],
    batch: BatchSpec | None,
) -> list[StageCost]:
    parameters: list[dict[int, int]] = [{} for _ in range(max(stages) + 1)]
    for leaf, stage in zip(leaves(calls), stages, strict=True):
        for variable in getattr(leaf.operation, "weights", []):
            # By identity: the weights of a layer that is called twice count once.
            parameters[stage][id(variable)] = math.prod(variable.shape)
    sizes = [sum(each.values()) for each in parameters]
    if batch is None:
        return [StageCost(size) for size in sizes]
    flops = np.bincount(stages, weights=call_flops(model, calls, batch)).tolist()
    return list(map(StageCost, sizes, flops, shares(flops)))


def _specs(variables: Sequence[keras.Variable]) -> list[Spec]:
    return [jax.ShapeDtypeStruct(variable.shape, variable.dtype) for variable in variables]


MOST_DOWNSETS = 4096  # the search takes half a second for 4 stages; ResNet50 has 241


def balance(
    costs: Sequence[float], edges: Sequence[Sequence[int]], num_stages: int
) -> tuple[int, ...]:
    """Returns the stage of each call.

    Stages never decrease along an edge, and none is empty. Of the assignments whose most expensive
    stage costs least, the one with the fewest values crossing the cuts between stages is returned.

    Args:
        costs: of each call in execution order, in any unit, none negative.
        edges: for each call, the numbers of the earlier calls whose values it takes.
        num_stages: number of stages.

    Raises:
        OptionError: if there are fewer calls than stages, or `num_stages` is below 1.
    """
    if not 1 <= num_stages <= len(costs):
        raise OptionError(
            f"A model of {len(costs)} layer calls cannot be cut into {num_stages} stages. Set a "
            f"number of stages from 1 to {len(costs)}."
        )
    ends = _downsets(edges) or _prefixes(len(costs))
    held = np.array(ends, dtype=bool)
    chosen = _best_chain(held, held @ np.asarray(costs, float), _crossings(held, edges), num_stages)
    # A call's stage is the number of stages that end before it.
    return tuple(int(count) for count in (~held[chosen]).sum(axis=0))


def _prefixes(calls: int) -> list[tuple[bool, ...]]:
    return [tuple(call < size for call in range(calls)) for size in range(calls + 1)]


def _downsets(edges: Sequence[Sequence[int]]) -> list[tuple[bool, ...]] | None:
    """Returns all sets of calls that contain their producers, smallest first; None if too many."""
    needs = [sum(1 << producer for producer in set(taken)) for taken in edges]
    level, downsets = [0], [0]
    for _ in needs:
        larger: dict[int, None] = {}
        for members in level:
            for call, need in enumerate(needs):
                if not members >> call & 1 and need & ~members == 0:
                    larger[members | 1 << call] = None
        level = list(larger)
        downsets += level
        if len(downsets) > MOST_DOWNSETS:
            return None
    return [tuple(bool(members >> call & 1) for call in range(len(needs))) for members in downsets]


def _crossings(held: np.ndarray, edges: Sequence[Sequence[int]]) -> np.ndarray:
    """Returns for each end the number of values computed before it and taken after it."""
    crossing = np.zeros(held.shape, dtype=bool)
    for call, taken in enumerate(edges):
        for producer in taken:
            crossing[:, producer] |= held[:, producer] & ~held[:, call]
    return crossing.sum(axis=1)


def _best_chain(
    held: np.ndarray, costs: np.ndarray, crossings: np.ndarray, num_stages: int
) -> list[int]:
    """Returns the ends of all stages but the last: of least cost, then of fewest crossings.

    One search finds the least cost. A second search, among stages of at most that cost, counts
    crossings. A single search would reject an early stage for its cost even where a later stage
    costs more.
    """
    packed = np.packbits(held, axis=1)
    inside = [np.flatnonzero(~(packed[:i] & ~packed[i]).any(axis=1)) for i in range(len(held))]

    dearest = np.where(np.arange(len(held)) == 0, 0.0, np.inf)
    for _ in range(num_stages):
        dearest = np.array(
            [
                np.maximum(dearest[j], costs[i] - costs[j]).min(initial=np.inf)
                for i, j in enumerate(inside)
            ]
        )
    limit = dearest[-1] + 1e-9 * costs[-1]  # sums of floats differ by their order

    fewest = np.where(np.arange(len(held)) == 0, 0.0, np.inf)
    before: list[list[int]] = []
    for _ in range(num_stages):
        totals = [
            np.where(costs[i] - costs[j] <= limit, fewest[j] + crossings[j], np.inf)
            for i, j in enumerate(inside)
        ]
        links = zip(inside, totals, strict=True)
        before.append([int(j[total.argmin()]) if len(j) else 0 for j, total in links])
        fewest = np.array([total.min(initial=np.inf) for total in totals])
    end, ends = len(held) - 1, []
    for starts in reversed(before):
        end = starts[end]
        ends.append(end)
    return ends[:-1][::-1]  # the first stage starts at the empty set
