"""The models and options that are refused when a loop begins, before anything is compiled.

`make_*_function`, `*_step` of a pipeline   must be Keras's own
gradient_accumulation_steps_per_replica     must be set for a pipeline; multiples of what runs at
                                            once
*_stages_poplar_options                     one for each stage
a variable of several stages                all of them on one device; natively it may be on several
offload_*, replicated_*                     of no effect in evaluate and predict: a warning
an accumulating optimizer                   not where the strategy accumulates, too
"""

import logging
from typing import Any

import keras

from millrace._compat.keras_graph import has_own_call
from millrace.errors import ModelError, OptionError, PlanError
from millrace.fit.checks import check_made_functions, check_pipelined_step
from millrace.fit.setup import Setup
from millrace.ipu.keras.extensions.arguments import STEPS
from millrace.ipu.keras.extensions.building import ModelExtension
from millrace.ipu.keras.extensions.settings import Settings
from millrace.ipu.no_effect import notes
from millrace.ipu.ops.schedules import check_length
from millrace.optimizers.accumulating import AccumulatingOptimizer
from millrace.pipelines.assignment.assignment import Assignment, scoped_stages
from millrace.pipelines.assignment.calls import find_calls, leaves
from millrace.plan import Mode

logger = logging.getLogger("millrace")
_OF_TRAINING = (
    "offload_weight_update_variables",
    "replicated_optimizer_state_sharding",
    "offload_activations",
    "offload_gradient_accumulation_buffers",
)
_DISABLE = "IPUStrategy(enable_keras_extensions=False)"


def check_overrides(model: Any, mode: Mode, is_pipelined: bool) -> None:
    """Refuses overrides that the strategy would not call.

    Args:
        model: the one that is about to run.
        mode: of the loop that it runs.
        is_pipelined: whether its layers are in stages.

    Raises:
        ModelError: naming the function and the model.
    """
    check_made_functions(model, f"Remove the override, or build the model under an {_DISABLE}.")
    if not is_pipelined:
        return
    check_pipelined_step(model, mode)
    if has_own_call(model) and not isinstance(model, ModelExtension):
        raise ModelError(
            f"{type(model).__name__} {model.name!r} is pipelined and overrides call(), of which "
            "the stages of its layers know nothing. Remove the override, derive the model from "
            "keras.Model with a call() only, or call reset_pipeline_stage_assignment()."
        )


def check_optimizer(model: Any, setter: str) -> None:
    """Refuses an optimizer that accumulates too, or whose own `minimize` would be passed over.

    One that derives from the base of all optimizers may have one: there is none to override.

    Args:
        model: one whose gradients accumulate over batches.
        setter: the method that says over how many.

    Raises:
        OptionError: naming the optimizer.
    """
    optimizer = model.optimizer
    _check_accumulation(model, optimizer, setter)
    while (inner := getattr(optimizer, "inner_optimizer", None)) is not None:
        optimizer = inner
        _check_accumulation(model, optimizer, setter)
    for kind in type(optimizer).__mro__:
        is_keras = kind.__module__.split(".")[0] == "keras"
        if is_keras or kind.__bases__ == (keras.optimizers.Optimizer,):
            return
        if "minimize" in vars(kind):
            raise OptionError(
                f"The optimizer {type(optimizer).__name__} of {model.name!r} overrides minimize(), "
                "which does not run where several batches make an update. Override "
                "update_step() or apply() instead."
            )


def _check_accumulation(model: Any, optimizer: Any, setter: str) -> None:
    own = getattr(optimizer, "gradient_accumulation_steps", None)
    if not own and not isinstance(optimizer, AccumulatingOptimizer):
        return
    what = f"gradient_accumulation_steps={own} of its optimizer" if own else "its optimizer"
    raise OptionError(
        f"The model {model.name!r} would accumulate gradients twice: by {what} "
        f"{type(optimizer).__name__}, and as its strategy was told. Compile it with the optimizer "
        f"alone, and call model.{setter}(gradient_accumulation_steps_per_replica=...)."
    )


def check_pipeline(setup: Setup, settings: Settings, assignment: Assignment, mode: Mode) -> None:
    """Refuses pipelines that the IPU would not run.

    Args:
        setup: of the model.
        settings: what its setters were told.
        assignment: its stages.
        mode: of the loop.

    Raises:
        OptionError: for a number that was not set, or a list of another length.
        PlanError: for a number of micro-batches, or a variable on several devices.
    """
    model = setup.model
    mapping = setup.options.pipelining.devices_of(assignment.num_stages)
    check_shared_variables(model, assignment, mapping)
    if mode is not Mode.TRAIN:
        _note_inert(setup, settings)
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


def check_shared_variables(model: Any, assignment: Assignment, mapping: Any) -> None:
    """Refuses stages on several devices that use one variable.

    Args:
        model: a pipelined model.
        assignment: its stages.
        mapping: the device of each stage.

    Raises:
        PlanError: naming the variable, the stages and their devices.
    """
    if len(mapping) != assignment.num_stages:
        return  # refused where devices are shared out
    calls = find_calls(model)
    stages = scoped_stages(calls) if assignment.stages is None else assignment.stages
    used: dict[int, tuple[Any, set[int]]] = {}
    for leaf, stage in zip(leaves(calls), stages, strict=True):
        if stage is not None:
            for variable in getattr(leaf.operation, "weights", ()):
                used.setdefault(id(variable), (variable, set()))[1].add(stage)
    for variable, users in used.values():
        devices = [mapping[stage] for stage in sorted(users)]
        if len(set(devices)) > 1:
            raise PlanError(
                f"The variable '{variable.path}' is used in the pipeline stages {sorted(users)}, "
                f"which are on the devices {devices}. Put these stages on one device with "
                "device_mapping in set_pipelining_options(), or their layers into one stage."
            )


def _check_stages(settings: Settings, number: int) -> None:
    for way in ("forward", "backward"):
        name = f"{way}_propagation_stages_poplar_options"
        given = settings.pipelining.more.get(name)
        if given is not None and len(given) != number:
            raise OptionError(
                f"{name} has {len(given)} entries, and the model has {number} pipeline "
                "stages. Give one PipelineStageOptions for each."
            )


def _note_inert(setup: Setup, settings: Settings) -> None:
    """Warns, once for a model, of what does nothing where no weights are updated."""
    given = [name for name in _OF_TRAINING if settings.of_either(name)]
    name = setup.model.name
    if given and notes.is_new(f"inference of {name}, {id(setup.model)}: {given}"):
        logger.warning(
            "%s have no effect in evaluate and predict of the pipelined model %r: no weights "
            "are updated there.",
            ", ".join(given),
            name,
        )
