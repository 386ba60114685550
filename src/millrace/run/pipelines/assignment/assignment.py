"""The stage of each layer call, checked to form a pipeline.

    model.get_...()  ->  [PipelineStageAssignment, ...]  ->  user sets .pipeline_stage
                                                          |
    PipelineStage scopes  ->  default_assignment  ----->  Assignment  <----  set_assignment

The objects in the list are the user's to change. `Assignment` is frozen, checked, and plain data.
"""

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NotRequired, TypedDict, cast

import keras

from millrace._compat.keras_graph import has_own_call
from millrace.errors import OptionError, PlanError
from millrace.run.pipelines.assignment.layer_calls import LayerCall, find_calls, leaf_edges, leaves
from millrace.run.pipelines.assignment.lists import AnyAssignment, make_list, read_list
from millrace.run.pipelines.assignment.marks import entered_stages

_MOST_STAGES = 10_000  # that a file may ask for: more than any pipeline has
_MISSING_SHOWN = 20  # stages, in an error


def check_no_gap(stages: Iterable[int]) -> None:
    """Checks that the stages are 0 to n - 1.

    Raises:
        OptionError: if one is negative or missing, or there are none.
    """
    numbers = sorted(set(stages))
    if not numbers:
        raise OptionError("The model makes no layer calls to put into stages. Add layers first.")
    # The first few: the numbers may come from a damaged file, and be of any size.
    present = set(numbers)
    absent = (number for number in range(numbers[-1] + 1) if number not in present)
    missing = list(itertools.islice(absent, _MISSING_SHOWN))
    if numbers[0] < 0 or missing:
        raise OptionError(
            f"Pipeline stages are numbered from 0 on without a gap. Found: {numbers}; missing: "
            f"{missing}. Number the stages from 0 to {len(numbers) - 1}."
        )


def check_flow(calls: Iterable[LayerCall], stages: Sequence[int]) -> None:
    """Checks that no leaf takes a value of a later stage.

    Raises:
        OptionError: if one does; the message names the first.
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
        calls: one for each layer.
        stages: for each call the stages of its leaves.

    Raises:
        OptionError: if one does not; the message names it and the layer before it.
    """
    ranges = [(call.label, min(own), max(own)) for call, own in zip(calls, stages, strict=True)]
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


@dataclass(frozen=True, slots=True)
class Assignment:
    """The stage of each leaf of a model, checked."""

    labels: tuple[str, ...]  # of the leaves, to notice changes of the model
    stages: tuple[int, ...] | None  # None: the scopes in the model's `call` give them in each trace
    num_stages: int
    is_open: bool = False  # "auto", before a batch has decided the stages: there are none


def get_assignment(model: keras.Model, current: Assignment | None) -> list[AnyAssignment]:
    """Returns an object for each call of `model`, in execution order, for the user to change.

    Args:
        model: the model.
        current: the assignment whose stages the objects start with. Without one, or if it has no
            stages, the objects of a subclassed model start with the scopes in its `call`.
    """
    calls = find_calls(model)
    if current is not None and (current.stages is not None or current.is_open):
        return make_list(calls, iter(current.stages or ()))
    return make_list(calls, iter(scoped_stages(calls) if has_own_call(model) else ()))


def default_assignment(model: keras.Model) -> Assignment | None:
    """Returns the assignment given by `PipelineStage` scopes; None if no scope applies.

    The scope around a call takes precedence, the innermost one first; then the scope in which the
    layer, or the nested model around it, was created. A subclassed model whose `call` enters stages
    is traced with them, so its assignment has no list.

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
    calls: Iterable[LayerCall], around: int | None = None, created_in: int | None = None
) -> list[int | None]:
    """Returns the stage that scopes give to each leaf; None for a leaf in no scope.

    Args:
        calls: of a model, or of a nested one.
        around: stage of the scope around the nested model's call.
        created_in: stage of the scope in which the nested model was created.
    """
    stages: list[int | None] = []
    for call in calls:
        scope = around if call.scope_stage is None else call.scope_stage
        creation = created_in if call.creation_stage is None else call.creation_stage
        if call.inner:
            stages += scoped_stages(call.inner, scope, creation)
        else:
            stages.append(creation if scope is None else scope)
    return stages


def set_assignment(model: keras.Model, items: object) -> Assignment:
    """Returns the assignment for a user's list.

    Args:
        model: the model; a subclassed one must be built.
        items: the list of `get_assignment`, with all stages set. For a Sequential also one whole
            number for each of `model.layers`; that of a nested model is for all layers inside.

    Raises:
        OptionError: if `items` is not a list, does not have exactly the calls of the model, or its
            stages have gaps or flow backwards.
        ModelError: if it is a subclassed model that is not built.
    """
    calls = find_calls(model)
    stages = read_list(model, calls, items)
    if isinstance(model, keras.Sequential):
        check_sequence(calls, stages)
    return assign(calls, [stage for own in stages for stage in own])


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


def check_unchanged(assignment: Assignment, model: keras.Model) -> None:
    """Checks that the model still has the layer calls of its assignment.

    Raises:
        PlanError: if layers were added or removed, as by `add()` and `pop()` of a Sequential.
    """
    labels = _labels(find_calls(model))
    if labels == assignment.labels:
        return
    new = [label for label in labels if label not in assignment.labels]
    gone = [label for label in assignment.labels if label not in labels]
    raise PlanError(
        f"The model '{model.name}' was assigned to pipeline stages with {len(assignment.labels)} "
        f"layer calls and now makes {len(labels)} (new: {new or 'none'}; gone: {gone or 'none'}). "
        "Call set_pipeline_stage_assignment() with a list for the layers it has now, or "
        "reset_pipeline_stage_assignment()."
    )


class AssignmentJson(TypedDict):
    """An assignment as plain data."""

    num_stages: int
    calls: list[list[Any]] | None  # name path, node index and stage of each leaf
    is_open: NotRequired[bool]


def to_json(assignment: Assignment, model: keras.Model) -> AssignmentJson:
    """Returns an assignment as plain data.

    Raises:
        PlanError: if layers were added or removed since it was set.
    """
    data: AssignmentJson = {"num_stages": assignment.num_stages, "calls": None}
    if assignment.is_open:
        return {**data, "is_open": True}
    check_unchanged(assignment, model)
    if assignment.stages is not None:
        names = _names(find_calls(model))
        stages = zip(names, assignment.stages, strict=True)
        data["calls"] = [[name, index, stage] for (name, index), stage in stages]
    return data


def from_json(data: AssignmentJson, model: keras.Model) -> Assignment:
    """Returns the assignment of a loaded model from the data saved by `to_json`.

    Raises:
        OptionError: if the loaded model makes other calls than the saved one.
        ModelError: if it is a subclassed model that is not built.
    """
    data = _checked(data, model)
    if data.get("is_open"):
        return Assignment((), None, data["num_stages"], is_open=True)
    calls = find_calls(model)
    if data["calls"] is None:
        return Assignment(_labels(calls), None, data["num_stages"])
    names = _names(calls)
    stages = {(name, index): stage for name, index, stage in data["calls"]}
    if stages.keys() != set(names) and _are_renumbered(leaves(calls), list(stages)):
        stages = dict(zip(names, stages.values(), strict=True))
    if stages.keys() != set(names):
        other = sorted(stages.keys() ^ set(names))
        raise OptionError(
            f"The pipeline stages that were saved are for another model than '{model.name}': "
            f"only one of the two calls layer {other[0][0]!r} (node index {other[0][1]}). Remove "
            "millrace.json from its file, a zip archive, load it, and set its stages and options."
        )
    return assign(calls, [stages[name] for name in names])


def _are_renumbered(calls: Sequence[LayerCall], saved: Sequence[tuple[str, int]]) -> bool:
    """Whether the calls differ from those saved in numbers of automatic names only.

    Keras counts automatic names in each process: a class that builds its graph in its constructor
    calls `multiply` when it is saved, and `multiply_2` when it is loaded.
    """
    return len(calls) == len(saved) and all(
        index == call.node_index and re.fullmatch(_pattern(call), name)
        for call, (name, index) in zip(calls, saved, strict=True)
    )


def _pattern(call: LayerCall) -> str:
    """Returns a pattern of the call's name with any numbers in the automatic names of its path."""
    steps = call.name.split("/")
    for position, (operation, _) in enumerate(call.path):
        name = re.sub(r"_\d+$", "", operation.name)
        rest = re.escape(steps[position].removeprefix(operation.name))
        is_automatic = name.replace("_", "") == type(operation).__name__.lower()
        numbered = rf"{name}(_\d+)?" if is_automatic else re.escape(operation.name)
        steps[position] = numbered + rest
    return "/".join(steps)


def _checked(data: object, model: keras.Model) -> AssignmentJson:
    """Returns saved stages if they have their form.

    Raises:
        OptionError: if they have another one.
    """
    values = cast(dict[str, Any], data) if isinstance(data, dict) else {}
    number, calls = values.get("num_stages"), values.get("calls")
    has_form = type(number) is int and 0 < number <= _MOST_STAGES
    if calls is not None:
        has_form = isinstance(calls, list) and all(map(_is_saved_call, cast(list[object], calls)))
    if not has_form:
        raise OptionError(
            f"The pipeline stages that were saved with '{model.name}' are damaged. Save the model "
            "again, or remove them from its file and call set_pipeline_stage_assignment()."
        )
    is_open = values.get("is_open") is True
    return cast(AssignmentJson, {"num_stages": number, "calls": calls, "is_open": is_open})


def _is_saved_call(call: object) -> bool:
    """Whether it is a name, a node index and a stage."""
    if not isinstance(call, list):
        return False
    return [type(each) for each in cast(list[object], call)] == [str, int, int]


def _names(calls: Iterable[LayerCall]) -> list[tuple[str, int]]:
    return [(leaf.name, leaf.node_index) for leaf in leaves(calls)]
