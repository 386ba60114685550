"""Lists of `get_pipeline_stage_assignment` between native classes and those of IPU programs.

a native list          -> `with_ipu_names` -> what a program is given
what a program sets    -> `check_names`    -> taken natively: the classes derive from native ones
"""

from collections.abc import Iterable
from typing import Any

from millrace.errors import OptionError
from millrace.ipu.keras.extensions.assignments import (
    SequentialLayerPipelineStageAssignment,
    classes_of,
    kind_of_model,
)
from millrace.pipelines.assignment.lists import (
    AnyAssignment,
    NestedPipelineStageAssignment,
    PipelineStageAssignment,
)
from millrace.strategy.controller import controller_of


def with_ipu_names(model: Any, items: Iterable[AnyAssignment]) -> list[Any]:
    """Returns the objects of a native list as those of IPU programs.

    A nested model without stages starts with those that it was assigned itself.

    Args:
        model: that makes the calls.
        items: as `get_pipeline_stage_assignment` returns them.
    """
    layer_kind, nested_kind = classes_of(model)
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
    kinds = classes_of(model)
    for number, item in enumerate(given if isinstance(given, list) else ()):
        if isinstance(item, AnyAssignment) and not isinstance(item, kinds):
            raise OptionError(
                f"Element {number} for the model '{model.name}' is a {type(item).__name__}. A "
                f"{kind_of_model(model)} takes a {kinds[0].__name__} for each layer call and a "
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
