"""The objects of `get_pipeline_stage_assignment`, by their IPU names: one per layer call.

SequentialLayerPipelineStageAssignment         in a Sequential  -> PipelineStageAssignment
FunctionalLayerPipelineStageAssignment         in a Functional  -> PipelineStageAssignment
ModelLayerPipelineStageAssignment              in a subclass    -> PipelineStageAssignment
SequentialNestedModelPipelineStageAssignment   in a Sequential  -> NestedPipelineStageAssignment
FunctionalNestedModelPipelineStageAssignment   in a Functional  -> NestedPipelineStageAssignment
NestedModelPipelineStageAssignment             in a subclass    -> NestedPipelineStageAssignment

The native classes are those of `millrace.graph.stage_lists`, which also checks the list.
"""

from collections.abc import Iterable
from typing import Any

import keras

from millrace._compat.keras_graph import has_own_call
from millrace.errors import OptionError
from millrace.graph.stage_lists import (
    AnyAssignment,
    NestedPipelineStageAssignment,
    PipelineStageAssignment,
)
from millrace.strategy.controller import controller_of


class ModelLayerPipelineStageAssignment(PipelineStageAssignment):
    """The stage of one layer call in a subclassed model."""


class FunctionalLayerPipelineStageAssignment(ModelLayerPipelineStageAssignment):
    """The stage of one layer call in a Functional model."""


class SequentialLayerPipelineStageAssignment(PipelineStageAssignment):
    """The stage of one layer in a Sequential model."""

    def __init__(self, layer: Any, pipeline_stage: int | None = None):
        super().__init__(layer, 0, pipeline_stage)


class NestedModelPipelineStageAssignment(NestedPipelineStageAssignment):
    """The stages of the calls inside one call of a nested model, in a subclassed model."""


class FunctionalNestedModelPipelineStageAssignment(NestedModelPipelineStageAssignment):
    """The stages of the calls inside one call of a nested model, in a Functional model."""


class SequentialNestedModelPipelineStageAssignment(NestedPipelineStageAssignment):
    """The stages of the calls inside a nested model, in a Sequential model."""

    def __init__(self, nested_model: Any, pipeline_stage_assignments: list[Any]):
        super().__init__(nested_model, 0, pipeline_stage_assignments)


def with_ipu_names(model: Any, items: Iterable[AnyAssignment]) -> list[Any]:
    """Returns the objects of a native list as those of IPU programs.

    A nested model without stages starts with those that it was assigned itself.

    Args:
        model: that makes the calls.
        items: as `get_pipeline_stage_assignment` returns them.
    """
    layer_kind, nested_kind = _kinds(model)
    found: list[Any] = []
    for item in items:
        sequential = layer_kind is SequentialLayerPipelineStageAssignment
        index = () if sequential else (item.node_index,)
        if isinstance(item, NestedPipelineStageAssignment):
            inner = item.pipeline_stage_assignments
            _take_own_stages(item.nested_model, inner)
            named = with_ipu_names(item.nested_model, inner)
            found.append(nested_kind(item.nested_model, *index, named))
        else:
            inbound = {} if sequential else {"inbound_layers": item.inbound_layers}
            found.append(layer_kind(item.layer, *index, item.pipeline_stage, **inbound))
    return found


def check_names(model: Any, given: Any) -> None:
    """Checks that a list has the objects that the model takes; the rest is checked natively.

    Raises:
        OptionError: for an object of a model of another kind.
    """
    kinds = _kinds(model)
    for number, item in enumerate(given if isinstance(given, list) else ()):
        if isinstance(item, AnyAssignment) and not isinstance(item, kinds):
            raise OptionError(
                f"Element {number} for the model '{model.name}' is a {type(item).__name__}. A "
                f"{_kind_of_model(model)} takes a {kinds[0].__name__} for each layer call and a "
                f"{kinds[1].__name__} for each nested model, as get_pipeline_stage_assignment() "
                "returns them."
            )
        if isinstance(item, NestedPipelineStageAssignment):
            check_names(item.nested_model, item.pipeline_stage_assignments)


def _take_own_stages(model: Any, items: list[AnyAssignment]) -> None:
    controller = controller_of(model)
    layers = [item for item in items if isinstance(item, PipelineStageAssignment)]
    if controller is None or any(item.pipeline_stage is not None for item in layers):
        return
    for item, own in zip(items, controller.stages.get(), strict=True):
        if isinstance(item, PipelineStageAssignment):
            item.pipeline_stage = own.pipeline_stage
        else:
            item.pipeline_stage_assignments[:] = own.pipeline_stage_assignments


def _kind_of_model(model: Any) -> str:
    if has_own_call(model):
        return "subclassed model"
    return "Sequential" if isinstance(model, keras.Sequential) else "Functional"


_KINDS: dict[str, tuple[Any, Any]] = {
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


def _kinds(model: Any) -> tuple[Any, Any]:
    return _KINDS[_kind_of_model(model)]
