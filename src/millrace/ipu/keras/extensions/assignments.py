"""The objects of `get_pipeline_stage_assignment`, by their IPU names: one per layer call.

SequentialLayerPipelineStageAssignment         in a Sequential  -> PipelineStageAssignment
FunctionalLayerPipelineStageAssignment         in a Functional  -> PipelineStageAssignment
ModelLayerPipelineStageAssignment              in a subclass    -> PipelineStageAssignment
SequentialNestedModelPipelineStageAssignment   in a Sequential  -> NestedPipelineStageAssignment
FunctionalNestedModelPipelineStageAssignment   in a Functional  -> NestedPipelineStageAssignment
NestedModelPipelineStageAssignment             in a subclass    -> NestedPipelineStageAssignment

The native classes are those of `millrace.pipelines.assignment.lists`, which also checks the list.
"""

from typing import Any

import keras

from millrace._compat.keras_graph import has_own_call
from millrace.pipelines.assignment.lists import (
    NestedPipelineStageAssignment,
    PipelineStageAssignment,
)


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


def kind_of_model(model: Any) -> str:
    """Returns what a model is, in words."""
    if has_own_call(model):
        return "subclassed model"
    return "Sequential" if isinstance(model, keras.Sequential) else "Functional"


def classes_of(model: Any) -> tuple[Any, Any]:
    """Returns the classes for a layer and for a nested model."""
    return _CLASSES[kind_of_model(model)]


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
