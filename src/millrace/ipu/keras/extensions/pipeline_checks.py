"""What is checked of a pipelined model before a loop: the rules of IPU pipelines.

gradient_accumulation_steps_per_replica    must be set; multiples of what runs at once
*_stages_poplar_options                    one for each stage
offload_*, replicated_*                    of no effect in evaluate and predict
"""

import logging

from millrace.errors import OptionError
from millrace.ipu.keras.extensions.reasons import STEPS
from millrace.ipu.keras.extensions.settings import Settings
from millrace.ipu.keras.extensions.shared_variables import check_shared_variables
from millrace.ipu.ops.length_rule import check_length
from millrace.pipelines.assignment.assignment import Assignment
from millrace.plan import Mode
from millrace.strategy.controller import Controller

logger = logging.getLogger("millrace")

_OF_TRAINING = (
    "offload_weight_update_variables",
    "replicated_optimizer_state_sharding",
    "offload_activations",
    "offload_gradient_accumulation_buffers",
)


def check_pipeline(
    controller: Controller, settings: Settings, assignment: Assignment, mode: Mode
) -> None:
    """Refuses pipelines that the IPU would not run.

    Args:
        controller: of the model.
        settings: what its setters were told.
        assignment: its stages.
        mode: of the loop.

    Raises:
        OptionError: for a number that was not set, or a list of another length.
        PlanError: for a number of micro-batches, or a variable on several devices.
    """
    model = controller.model
    mapping = controller.options.pipelining.devices_of(assignment.num_stages)
    check_shared_variables(model, assignment, mapping)
    if mode is not Mode.TRAIN:
        _note_inert(controller, settings)
        return
    steps = settings.pipelining.steps
    if steps is None:
        raise OptionError(
            f"The pipelined model {model.name!r} was not told how many micro-batches make one "
            f"weight update. Call model.set_pipelining_options({STEPS}=...) before fit."
        )
    _check_stages(settings, assignment.num_stages)
    if assignment.num_stages > 1:  # else refused as a pipeline
        check_length(settings.schedule, mapping, steps, training=True)


def _check_stages(settings: Settings, number: int) -> None:
    for way in ("forward", "backward"):
        name = f"{way}_propagation_stages_poplar_options"
        given = settings.pipelining.more.get(name)
        if given is not None and len(given) != number:
            raise OptionError(
                f"{name} has {len(given)} entries, and the model has {number} pipeline "
                "stages. Give one PipelineStageOptions for each."
            )


def _note_inert(controller: Controller, settings: Settings) -> None:
    """Warns, once for a model, of what does nothing where no weights are updated."""
    given = [name for name in _OF_TRAINING if settings.of_either(name)]
    note = f"inference of {controller.model.name}: {given}"
    if given and note not in controller.totals.noted:
        controller.totals.noted.add(note)
        logger.warning(
            "%s have no effect in evaluate and predict of the pipelined model %r: no weights "
            "are updated there.",
            ", ".join(given),
            controller.model.name,
        )
