"""The list that a user gets, changes and sets: one object per layer call, nested like the model.

    [PipelineStageAssignment(dense, 0), NestedPipelineStageAssignment(encoder, 0, [...]), ...]

A Sequential also takes one whole number per layer.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import cast

import keras

from millrace._compat.keras_graph import has_own_call
from millrace.errors import OptionError
from millrace.run.pipelines.assignment.layer_calls import LayerCall, leaves


class PipelineStageAssignment:
    """The stage of one layer call.

    Args:
        layer: the layer or operation that is called.
        node_index: index of the call among the layer's calls in this model.
        pipeline_stage: the stage; None: not assigned yet.
        inbound_layers: the layers whose values the call takes.
    """

    def __init__(
        self,
        layer: keras.Operation,
        node_index: int = 0,
        pipeline_stage: int | None = None,
        inbound_layers: Iterable[keras.Operation] = (),
    ):
        self._layer = layer
        self._node_index = node_index
        self._inbound_layers = tuple(inbound_layers)
        self.pipeline_stage = pipeline_stage

    @property
    def layer(self) -> keras.Operation:
        """The layer or operation that is called."""
        return self._layer

    @property
    def node_index(self) -> int:
        """Index of the call among the layer's calls in this model."""
        return self._node_index

    @property
    def inbound_layers(self) -> list[keras.Operation]:
        """The layers whose values the call takes, to tell the calls of one layer apart."""
        return list(self._inbound_layers)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(layer={self.layer.name!r}, node_index={self.node_index}, "
            f"pipeline_stage={self.pipeline_stage})"
        )


class NestedPipelineStageAssignment:
    """The stages of the calls inside one call of a nested model.

    Args:
        nested_model: the model that is called.
        node_index: index of the call among the nested model's calls in the outer model.
        pipeline_stage_assignments: one for each call that the nested model makes.
    """

    def __init__(
        self,
        nested_model: keras.Model,
        node_index: int,
        pipeline_stage_assignments: list["PipelineStageAssignment | NestedPipelineStageAssignment"],
    ):
        self._nested_model = nested_model
        self._node_index = node_index
        self._pipeline_stage_assignments = pipeline_stage_assignments

    @property
    def nested_model(self) -> keras.Model:
        """The model that is called."""
        return self._nested_model

    @property
    def node_index(self) -> int:
        """Index of the call among the nested model's calls in the outer model."""
        return self._node_index

    @property
    def pipeline_stage_assignments(
        self,
    ) -> list["PipelineStageAssignment | NestedPipelineStageAssignment"]:
        """One for each call that the nested model makes."""
        return self._pipeline_stage_assignments

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(nested_model={self.nested_model.name!r}, "
            f"node_index={self.node_index}, "
            f"pipeline_stage_assignments={self.pipeline_stage_assignments})"
        )


AnyAssignment = PipelineStageAssignment | NestedPipelineStageAssignment


def make_list(calls: Iterable[LayerCall], stages: Iterator[int | None]) -> list[AnyAssignment]:
    """Returns an object for each call; `stages` are those of the leaves, None once they run out."""
    return [
        NestedPipelineStageAssignment(
            cast(keras.Model, call.operation), call.node_index, make_list(call.inner, stages)
        )
        if call.inner
        else PipelineStageAssignment(
            call.operation, call.node_index, next(stages, None), call.inbound
        )
        for call in calls
    ]


def read_list(model: keras.Model, calls: Sequence[LayerCall], items: object) -> list[list[int]]:
    """Returns for each call the stages that the user's list gives its leaves.

    The list of a Sequential is in the order of its layers; objects for the calls of other models
    may come in any order.

    Raises:
        OptionError: unless the list holds each call once, with a stage.
    """
    if not isinstance(items, list):
        raise OptionError(
            f"The pipeline stages of the model '{model.name}' must be a list. Received: "
            f"{type(items).__name__}. Set pipeline_stage of each object in the list that "
            "get_pipeline_stage_assignment() returns, and give that list, or 'auto' and num_stages."
        )
    if len(items) != len(calls):
        raise OptionError(
            f"The model '{model.name}' makes {len(calls)} layer calls, excluding input layers. "
            f"Received: a list of {len(items)}. Give one element per call; "
            "get_pipeline_stage_assignment() lists them."
        )
    is_sequential = isinstance(model, keras.Sequential) and not has_own_call(model)
    if is_sequential and all(type(item) is int for item in items):
        return [[stage] * len(leaves([call])) for call, stage in zip(calls, items, strict=True)]
    _check_types(model, items, is_sequential)
    ordered = items if is_sequential else _by_call(model, calls, items)
    return [_stages_of(call, item) for call, item in zip(calls, ordered, strict=True)]


def _check_types(model: keras.Model, items: list[object], is_sequential: bool) -> None:
    odd = [item for item in items if not isinstance(item, AnyAssignment)]
    if not odd:
        return
    item = next((item for item in odd if type(item) is not int), odd[0])
    numbers = "either all whole numbers or all " if is_sequential else ""
    raise OptionError(
        f"The list for the model '{model.name}' holds {item!r}, of type {type(item).__name__}. "
        f"Its elements must be {numbers}objects as get_pipeline_stage_assignment() returns them: "
        "set pipeline_stage of each. Or give 'auto' and num_stages."
    )


def _by_call(
    model: keras.Model, calls: Iterable[LayerCall], items: list[AnyAssignment]
) -> list[AnyAssignment]:
    by_call: dict[tuple[int, int], AnyAssignment] = {}
    for item in items:
        key = (id(_called(item)), item.node_index)
        if key in by_call:
            raise OptionError(
                f"The list for the model '{model.name}' has the call of layer "
                f"'{_called(item).name}' (node index {item.node_index}) twice. Keep one object "
                "per call, as get_pipeline_stage_assignment() returns them."
            )
        by_call[key] = item
    for call in calls:
        if (id(call.operation), call.node_index) not in by_call:
            raise OptionError(
                f"The list for the model '{model.name}' has no object for the call of layer "
                f"'{call.operation.name}' (node index {call.node_index}), but one of another "
                "model. Take all from this model's get_pipeline_stage_assignment()."
            )
    return [by_call[id(call.operation), call.node_index] for call in calls]


def _stages_of(call: LayerCall, item: AnyAssignment) -> list[int]:
    if _called(item) is not call.operation:
        raise OptionError(
            f"The object for layer '{_called(item).name}' is where that of '{call.label}' "
            "belongs. Keep the order of get_pipeline_stage_assignment()."
        )
    if isinstance(item, NestedPipelineStageAssignment) != bool(call.inner):
        needed = NestedPipelineStageAssignment if call.inner else PipelineStageAssignment
        raise OptionError(
            f"The call of '{call.name}' (node index {call.node_index}) is assigned by a "
            f"{type(item).__name__}. It needs a {needed.__name__}, as "
            "get_pipeline_stage_assignment() returns it."
        )
    if isinstance(item, NestedPipelineStageAssignment):
        inner = read_list(item.nested_model, call.inner, item.pipeline_stage_assignments)
        return [stage for stages in inner for stage in stages]
    stage = item.pipeline_stage
    if stage is None:
        raise OptionError(
            f"The call of layer '{call.name}' (node index {call.node_index}) has no pipeline "
            "stage. Set its pipeline_stage to a whole number."
        )
    if type(stage) is not int:
        raise OptionError(
            f"The call of layer '{call.name}' (node index {call.node_index}) has the pipeline "
            f"stage {stage!r}, of type {type(stage).__name__}. Set a whole number from 0 on."
        )
    return [stage]


def _called(item: AnyAssignment) -> keras.Operation:
    nested = isinstance(item, NestedPipelineStageAssignment)
    return item.nested_model if nested else item.layer
