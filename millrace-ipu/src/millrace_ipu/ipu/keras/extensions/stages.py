"""The methods of an extended model that assign layer calls to pipeline stages.

get_pipeline_stage_assignment             the native list, in the classes of this file
set_pipeline_stage_assignment             the native one, after a check of the classes
reset_pipeline_stage_assignment           the native one
print_pipeline_stage_assignment_summary   the native one, without the costs of stages
add, pop                                  Keras's; they log that stages must be set again

native list            -> `_with_ipu_names` -> list for a program
list of a program      -> `_check_names`    -> native, since the classes derive from native ones

SequentialLayerPipelineStageAssignment         in a Sequential  -> PipelineStageAssignment
FunctionalLayerPipelineStageAssignment         in a Functional  -> PipelineStageAssignment
ModelLayerPipelineStageAssignment              in a subclass    -> PipelineStageAssignment
SequentialNestedModelPipelineStageAssignment   in a Sequential  -> NestedPipelineStageAssignment
FunctionalNestedModelPipelineStageAssignment   in a Functional  -> NestedPipelineStageAssignment
NestedModelPipelineStageAssignment             in a subclass    -> NestedPipelineStageAssignment

Each method takes the controller of its model first, as the native methods do.
"""

import logging
from collections.abc import Callable, Iterable
from typing import Any, cast

import keras

from millrace.errors import OptionError, PlanError, UnsupportedError
from millrace.extend import (
    Controller,
    NestedPipelineStageAssignment,
    PipelineStageAssignment,
    controller_of,
    find_calls,
    get_assignment,
    has_own_call,
    scoped_stages,
    summary_lines,
)

logger = logging.getLogger("millrace")
AnyAssignment = PipelineStageAssignment | NestedPipelineStageAssignment


class ModelLayerPipelineStageAssignment(PipelineStageAssignment):
    """The stage of one layer call in a subclassed model."""


class FunctionalLayerPipelineStageAssignment(ModelLayerPipelineStageAssignment):
    """The stage of one layer call in a Functional model."""


class SequentialLayerPipelineStageAssignment(PipelineStageAssignment):
    """The stage of one layer in a Sequential model."""

    def __init__(self, layer: keras.Layer, pipeline_stage: int | None = None):
        super().__init__(layer, 0, pipeline_stage)


class NestedModelPipelineStageAssignment(NestedPipelineStageAssignment):
    """The stages of the calls inside one call of a nested model, in a subclassed model."""


class FunctionalNestedModelPipelineStageAssignment(NestedModelPipelineStageAssignment):
    """The stages of the calls inside one call of a nested model, in a Functional model."""


class SequentialNestedModelPipelineStageAssignment(NestedPipelineStageAssignment):
    """The stages of the calls inside a nested model, in a Sequential model."""

    def __init__(self, nested_model: keras.Model, pipeline_stage_assignments: list[AnyAssignment]):
        super().__init__(nested_model, 0, pipeline_stage_assignments)


# For each kind of model the classes for a layer, and for a nested model.
_CLASSES: dict[str, tuple[Any, Any]] = {
    "Sequential": (
        SequentialLayerPipelineStageAssignment,
        SequentialNestedModelPipelineStageAssignment,
    ),
    "Functional": (
        FunctionalLayerPipelineStageAssignment,
        FunctionalNestedModelPipelineStageAssignment,
    ),
    "subclassed model": (ModelLayerPipelineStageAssignment, NestedModelPipelineStageAssignment),
}


def get_pipeline_stage_assignment(controller: Controller) -> list[Any]:
    """Returns an object for each layer call, in execution order, with its stage or None.

    Inputs are left out. After `add()` or `pop()` all stages are None. A change of the objects
    takes effect with `set_pipeline_stage_assignment`.

    Raises:
        ModelError: for a subclassed model that is not built.
        UnsupportedError: for a subclassed model without a `call`.
    """
    model = controller.model
    _check_call(model)
    try:
        items = controller.setup.stages.get()
    except PlanError:  # layers were added or removed
        items = get_assignment(model, None)
    return _with_ipu_names(model, items)


def set_pipeline_stage_assignment(
    controller: Controller, pipeline_stage_assignment: list[AnyAssignment] | list[int]
) -> None:
    """Assigns a stage to each layer call.

    Args:
        controller: of the model whose method this becomes.
        pipeline_stage_assignment: the list of `get_pipeline_stage_assignment`, with all stages
            set. For a Sequential also one whole number for each layer.

    Raises:
        OptionError: if it does not fit the model, has gaps, or flows backwards.
        ModelError: for a subclassed model that is not built.
        UnsupportedError: for a subclassed model without a `call`.
    """
    _check_call(controller.model)
    _check_names(controller.model, pipeline_stage_assignment)
    controller.setup.stages.set(pipeline_stage_assignment)
    controller.put_options(controller.setup.options)


def reset_pipeline_stage_assignment(controller: Controller) -> None:
    """Removes all stages, so that the model is not a pipeline."""
    controller.setup.stages.reset()
    controller.put_options(controller.setup.options)


def print_pipeline_stage_assignment_summary(
    controller: Controller,
    line_length: int | None = None,
    print_fn: Callable[[str], object] | None = None,
) -> None:
    """Prints the stage of each layer call.

    Args:
        controller: of the model whose method this becomes.
        line_length: width of a line in characters. None is 89, for a Sequential 60.
        print_fn: called with each line. None is `print`.
    """
    assignment, calls = controller.setup.stages.assignment(), find_calls(controller.model)
    stages = None
    if assignment is not None:
        stages = scoped_stages(calls) if assignment.stages is None else assignment.stages
    for line in summary_lines(controller.model, calls, stages, line_length):
        (print_fn or print)(line)


def add(controller: Controller, layer: keras.Layer, rebuild: bool = True) -> None:
    """Adds a layer to a Sequential. Its pipeline stages must then be set again."""
    keras.Sequential.add(cast(keras.Sequential, controller.model), layer, rebuild)
    _log_change(controller)


def pop(controller: Controller, rebuild: bool = True) -> keras.Layer:
    """Removes the last layer of a Sequential. Its pipeline stages must then be set again."""
    layer = keras.Sequential.pop(cast(keras.Sequential, controller.model), rebuild)
    _log_change(controller)
    return cast(keras.Layer, layer)


STAGE_METHODS = (
    get_pipeline_stage_assignment,
    set_pipeline_stage_assignment,
    reset_pipeline_stage_assignment,
    print_pipeline_stage_assignment_summary,
)
SEQUENTIAL_METHODS = (add, pop)


def _check_call(model: keras.Model) -> None:
    if type(model).call is keras.Model.call:
        raise UnsupportedError(
            f"The model '{model.name}' ({type(model).__name__}) does not define call(), so it "
            "calls no layers that could be in stages. Define call(self, inputs)."
        )


def _log_change(controller: Controller) -> None:
    try:
        controller.setup.stages.assignment()
    except PlanError:
        logger.info(
            "Layers of the pipelined model %r were added or removed. Call "
            "set_pipeline_stage_assignment() again before it runs.",
            controller.model.name,
        )


def _with_ipu_names(model: keras.Model, items: Iterable[AnyAssignment]) -> list[AnyAssignment]:
    """Returns the objects of a native list in the classes of IPU programs.

    A nested model without stages starts with the stages that were assigned to it by itself.

    Args:
        model: the model that makes the calls.
        items: as `get_pipeline_stage_assignment` returns them.
    """
    layer_class, nested_class = _CLASSES[_kind(model)]
    objects: list[AnyAssignment] = []
    for item in items:
        is_sequential = layer_class is SequentialLayerPipelineStageAssignment
        index = () if is_sequential else (item.node_index,)
        if isinstance(item, NestedPipelineStageAssignment):
            inner = item.pipeline_stage_assignments
            _take_own_stages(item.nested_model, inner)
            named = _with_ipu_names(item.nested_model, inner)
            objects.append(nested_class(item.nested_model, *index, named))
        else:
            inbound = {} if is_sequential else {"inbound_layers": item.inbound_layers}
            objects.append(layer_class(item.layer, *index, item.pipeline_stage, **inbound))
    return objects


def _take_own_stages(model: keras.Model, items: list[AnyAssignment]) -> None:
    controller = controller_of(model)
    layers = [item for item in items if isinstance(item, PipelineStageAssignment)]
    if controller is None or any(item.pipeline_stage is not None for item in layers):
        return
    for item, own in zip(items, controller.setup.stages.get(), strict=True):
        if isinstance(item, PipelineStageAssignment):
            item.pipeline_stage = own.pipeline_stage
        else:
            item.pipeline_stage_assignments[:] = own.pipeline_stage_assignments


def _check_names(model: keras.Model, assignments: object) -> None:
    """Checks that a list has objects of the model's classes; the native check does the others.

    Raises:
        OptionError: for an object for another kind of model.
    """
    classes = _CLASSES[_kind(model)]
    for number, item in enumerate(assignments if isinstance(assignments, list) else ()):
        if isinstance(item, AnyAssignment) and not isinstance(item, classes):
            raise OptionError(
                f"Element {number} for the model '{model.name}' is a {type(item).__name__}. A "
                f"{_kind(model)} takes a {classes[0].__name__} for each layer call and a "
                f"{classes[1].__name__} for each nested model, as get_pipeline_stage_assignment() "
                "returns them."
            )
        if isinstance(item, NestedPipelineStageAssignment):
            _check_names(item.nested_model, item.pipeline_stage_assignments)


def _kind(model: keras.Model) -> str:
    if has_own_call(model):
        return "subclassed model"
    return "Sequential" if isinstance(model, keras.Sequential) else "Functional"
