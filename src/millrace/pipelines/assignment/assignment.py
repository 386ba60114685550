"""Which call is in which stage, and whether that makes a pipeline.

    model.get_...()  ->  [PipelineStageAssignment, ...]  ->  user sets .pipeline_stage
                                                          |
    PipelineStage scopes  ->  default_assignment  ----->  Assignment  <----  set_assignment

The objects in the list are the user's to change. `Assignment` is frozen, checked, and plain data.
"""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import keras

from millrace._compat.keras_graph import has_own_call
from millrace.errors import OptionError, PlanError
from millrace.pipelines.assignment.calls import LayerCall, find_calls, leaf_edges, leaves
from millrace.pipelines.assignment.lists import (
    AnyAssignment,
    NestedPipelineStageAssignment,
    PipelineStageAssignment,
    make_list,
    read_list,
)
from millrace.pipelines.assignment.marks import entered_stages


def check_no_gap(stages: Iterable[int]) -> None:
    """Checks that the stages are 0 to n - 1.

    Raises:
        OptionError: if one is negative or missing, or there are none.
    """
    found = sorted(set(stages))
    if not found:
        raise OptionError("The model makes no layer calls to put into stages. Add layers first.")
    missing = sorted(set(range(found[-1] + 1)) - set(found))
    if found[0] < 0 or missing:
        raise OptionError(
            f"Pipeline stages are numbered from 0 on without a gap. Found: {found}; missing: "
            f"{missing}. Number the stages from 0 to {len(found) - 1}."
        )


def check_flow(calls: Iterable[LayerCall], stages: Sequence[int]) -> None:
    """Checks that no leaf takes a value of a later stage.

    Raises:
        OptionError: naming the first that does.
    """
    flat = leaves(calls)
    for number, producers in enumerate(leaf_edges(calls)):
        for producer in producers:
            if stages[producer] > stages[number]:
                raise OptionError(
                    f"The call of layer '{flat[number].name}' (node index "
                    f"{flat[number].node_index}) is in stage {stages[number]} and takes a value of "
                    f"'{flat[producer].label}', which is in the later stage {stages[producer]}. "
                    f"Move it to stage {stages[producer]} or later."
                )


def check_sequence(calls: Sequence[LayerCall], stages: Sequence[Sequence[int]]) -> None:
    """Checks that the layers of a Sequential begin at stage 0 and go up in steps of one.

    Args:
        calls: one per layer.
        stages: of each call, those of its leaves.

    Raises:
        OptionError: naming the layer that does not, and the one before it.
    """
    ranges = [(call.label, min(some), max(some)) for call, some in zip(calls, stages, strict=True)]
    for name, first, _ in ranges[:1]:
        if first != 0:
            raise OptionError(
                f"The first layer, '{name}', is in stage {first}. The first stage is 0: set that."
            )
    for (before, _, last), (after, first, _) in itertools.pairwise(ranges):
        if first not in (last, last + 1):
            raise OptionError(
                f"Layer '{after}' is in stage {first}, after '{before}' in stage {last}. Set "
                f"{last}, the same stage, or {last + 1}, the next."
            )


__all__ = [
    "Assignment",
    "NestedPipelineStageAssignment",
    "PipelineStageAssignment",
    "assign",
    "check_unchanged",
    "default_assignment",
    "from_json",
    "get_assignment",
    "scoped_stages",
    "set_assignment",
    "to_json",
]


@dataclass(frozen=True, slots=True)
class Assignment:
    """The stage of each leaf of a model, checked."""

    labels: tuple[str, ...]  # of the leaves, to tell whether the model is still the same
    stages: tuple[int, ...] | None  # None: scopes in the model's `call` say it in each trace
    num_stages: int


def get_assignment(model: Any, current: Assignment | None) -> list[AnyAssignment]:
    """Returns an object per call of `model`, in execution order, for the user to change.

    Args:
        model: the model.
        current: whose stages the objects start with. With None, or without stages of its own, the
            objects of a subclassed model start with those of the scopes in its `call`.
    """
    calls = find_calls(model)
    if current is not None and current.stages is not None:
        return make_list(calls, iter(current.stages))
    return make_list(calls, iter(scoped_stages(calls) if has_own_call(model) else ()))


def default_assignment(model: Any) -> Assignment | None:
    """Returns what `PipelineStage` scopes say about a model, or None if they say nothing.

    The scope around a call comes first, of a nested model's calls before that around the nested
    model; then the scope in which the layer was made, or the nested model. A subclassed model
    whose `call` enters stages is traced with them, so it gets an assignment without a list.

    Raises:
        OptionError: if some calls have a stage and others have none, or stages do not fit.
        ModelError: if it is a subclassed model that is not built.
    """
    with entered_stages() as entered:
        calls = find_calls(model)
    if entered and has_own_call(model):
        check_no_gap(entered)
        return Assignment(_labels(calls), None, max(entered) + 1)
    stages = scoped_stages(calls)
    if all(stage is None for stage in stages):
        return None
    for leaf, stage in zip(leaves(calls), stages, strict=True):
        if stage is None:
            raise OptionError(
                f"The call of layer '{leaf.name}' (node index {leaf.node_index}) is in no "
                "pipeline stage, and other calls of the model are. Move it into `with "
                "PipelineStage(...)`, or set all stages by set_pipeline_stage_assignment()."
            )
    return assign(calls, [stage for stage in stages if stage is not None])


def scoped_stages(
    calls: Iterable[LayerCall], around: int | None = None, made_in: int | None = None
) -> list[int | None]:
    """Returns the stage that scopes give to each leaf, None where there is none.

    Args:
        calls: of a model, or of a nested one.
        around: stage of the scope around the nested model's call.
        made_in: stage of the scope in which the nested model was made.
    """
    stages: list[int | None] = []
    for call in calls:
        scope = around if call.scope_stage is None else call.scope_stage
        creation = made_in if call.creation_stage is None else call.creation_stage
        if call.inner:
            stages += scoped_stages(call.inner, scope, creation)
        else:
            stages.append(creation if scope is None else scope)
    return stages


def set_assignment(model: Any, given: Any) -> Assignment:
    """Returns the assignment that a user's list stands for.

    Args:
        model: the model; a subclassed one must be built.
        given: what `get_assignment` returned, with all stages set. For a Sequential also one
            whole number per layer of `model.layers`, which for a nested model is for all inside.

    Raises:
        OptionError: if it is no list, has another length or other objects than the model has
            calls, or its stages have gaps or flow backwards.
        ModelError: if it is a subclassed model that is not built.
    """
    calls = find_calls(model)
    stages = read_list(model, calls, given)
    if isinstance(model, keras.Sequential):
        check_sequence(calls, stages)
    return assign(calls, [stage for some in stages for stage in some])


def assign(calls: Sequence[LayerCall], stages: Sequence[int]) -> Assignment:
    """Returns the assignment of these stages to the leaves of `calls`.

    Raises:
        OptionError: if they have gaps or flow backwards.
    """
    check_no_gap(stages)
    check_flow(calls, stages)
    return Assignment(_labels(calls), tuple(stages), max(stages) + 1)


def _labels(calls: Iterable[LayerCall]) -> tuple[str, ...]:
    return tuple(leaf.label for leaf in leaves(calls))


def check_unchanged(assignment: Assignment, model: Any) -> None:
    """Compares the model with the one that was assigned.

    Raises:
        PlanError: if layers came or went since, as by `add()` and `pop()` of a Sequential.
    """
    labels = _labels(find_calls(model))
    if labels == assignment.labels:
        return
    come = [label for label in labels if label not in assignment.labels]
    gone = [label for label in assignment.labels if label not in labels]
    raise PlanError(
        f"The model '{model.name}' was assigned to pipeline stages with {len(assignment.labels)} "
        f"layer calls and now makes {len(labels)} (new: {come or 'none'}; gone: {gone or 'none'}). "
        "Call set_pipeline_stage_assignment() with a list for the layers it has now, or "
        "reset_pipeline_stage_assignment()."
    )


def to_json(assignment: Assignment, model: Any) -> dict[str, Any]:
    """Returns an assignment as plain data: triples of name path, node index and stage.

    Raises:
        PlanError: if layers came or went since it was made.
    """
    check_unchanged(assignment, model)
    data: dict[str, Any] = {"num_stages": assignment.num_stages, "calls": None}
    if assignment.stages is not None:
        names = _names(find_calls(model))
        stages = zip(names, assignment.stages, strict=True)
        data["calls"] = [[name, index, stage] for (name, index), stage in stages]
    return data


def from_json(data: dict[str, Any], model: Any) -> Assignment:
    """Returns the assignment of a loaded model from what `to_json` gave for the saved one.

    Raises:
        OptionError: if the two make different calls.
        ModelError: if it is a subclassed model that is not built.
    """
    calls = find_calls(model)
    if data["calls"] is None:
        return Assignment(_labels(calls), None, data["num_stages"])
    stages = {(name, index): stage for name, index, stage in data["calls"]}
    if stages.keys() != set(_names(calls)):
        other = sorted(stages.keys() ^ set(_names(calls)))
        raise OptionError(
            f"The pipeline stages that were saved are for another model than '{model.name}': "
            f"only one of the two calls layer '{other[0][0]}' (node index {other[0][1]}). Call "
            "set_pipeline_stage_assignment() on the loaded model."
        )
    return assign(calls, [stages[name] for name in _names(calls)])


def _names(calls: Iterable[LayerCall]) -> list[tuple[str, int]]:
    return [(leaf.name, leaf.node_index) for leaf in leaves(calls)]
