"""The methods of an extended model that say which layer call is in which pipeline stage.

get_pipeline_stage_assignment             -> the native list, with the classes of `assignments`
set_pipeline_stage_assignment             -> the same, after a look at the classes
reset_pipeline_stage_assignment           -> the same
print_pipeline_stage_assignment_summary   -> the same, without the costs of stages
add, pop                                  -> Keras's, which then log that stages must be set again

Each takes the controller of its model first, as the native methods do.
"""

import logging
from collections.abc import Callable
from typing import Any

import keras

from millrace.errors import PlanError, UnsupportedError
from millrace.ipu.keras.extensions.assignment_lists import check_names, with_ipu_names
from millrace.ipu.keras.extensions.summary import ipu_summary_lines
from millrace.pipelines.assignment.assignment import get_assignment
from millrace.strategy import pipeline_methods
from millrace.strategy.controller import Controller

logger = logging.getLogger("millrace")


def get_pipeline_stage_assignment(controller: Controller) -> list[Any]:
    """Returns an object for each layer call, in execution order, with its stage or None.

    Inputs are left out. After `add()` or `pop()` all stages are None. A change of the objects
    takes effect with `set_pipeline_stage_assignment`.

    Raises:
        ModelError: if it is a subclassed model that is not built.
        UnsupportedError: if it is one without a `call`.
    """
    model = controller.model
    _check_call(model)
    try:
        items = controller.stages.get()
    except PlanError:  # layers came or went
        items = get_assignment(model, None)
    return with_ipu_names(model, items)


def set_pipeline_stage_assignment(controller: Controller, pipeline_stage_assignment: Any) -> None:
    """Chooses the stage of each layer call.

    Args:
        controller: of the model whose method this becomes.
        pipeline_stage_assignment: what `get_pipeline_stage_assignment` returned, with all stages
            set. For a Sequential also one whole number for each layer.

    Raises:
        OptionError: if it does not fit the model, has gaps, or flows backwards.
        ModelError: if it is a subclassed model that is not built.
        UnsupportedError: if it is one without a `call`.
    """
    _check_call(controller.model)
    check_names(controller.model, pipeline_stage_assignment)
    pipeline_methods.set_pipeline_stage_assignment(controller, pipeline_stage_assignment)


def reset_pipeline_stage_assignment(controller: Controller) -> None:
    """Makes the model one that is not pipelined."""
    pipeline_methods.reset_pipeline_stage_assignment(controller)


def print_pipeline_stage_assignment_summary(
    controller: Controller,
    line_length: int | None = None,
    print_fn: Callable[[str], Any] | None = None,
) -> None:
    """Prints the stage of each layer call.

    Args:
        controller: of the model whose method this becomes.
        line_length: characters of a line. None is 89, for a Sequential 60.
        print_fn: called with each line. None is `print`.
    """
    assignment = controller.stages.assignment()
    for line in ipu_summary_lines(controller.model, assignment, line_length):
        (print_fn or print)(line)


def add(controller: Controller, layer: Any, rebuild: bool = True) -> None:
    """Adds a layer to a Sequential. Its pipeline stages must then be set again."""
    keras.Sequential.add(controller.model, layer, rebuild)  # type: ignore[arg-type]
    _note_change(controller)


def pop(controller: Controller, rebuild: bool = True) -> Any:
    """Removes the last layer of a Sequential. Its pipeline stages must then be set again."""
    layer = keras.Sequential.pop(controller.model, rebuild)  # type: ignore[arg-type]
    _note_change(controller)
    return layer


STAGE_METHODS = (
    get_pipeline_stage_assignment,
    set_pipeline_stage_assignment,
    reset_pipeline_stage_assignment,
    print_pipeline_stage_assignment_summary,
)
SEQUENTIAL_METHODS = (add, pop)


def _check_call(model: Any) -> None:
    if type(model).call is keras.Model.call:
        raise UnsupportedError(
            f"The model '{model.name}' ({type(model).__name__}) does not define call(), so it "
            "calls no layers that could be in stages. Define call(self, inputs)."
        )


def _note_change(controller: Controller) -> None:
    try:
        controller.stages.assignment()
    except PlanError:
        logger.info(
            "Layers of the pipelined model %r came or went. Call "
            "set_pipeline_stage_assignment() again before it runs.",
            controller.model.name,
        )
