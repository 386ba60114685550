"""Checks of models and options when a loop begins, before anything is compiled.

`make_*_function`, `*_step` of a pipeline   must be Keras's own
gradient_accumulation_steps_per_replica     must be set for a pipeline, to a multiple of the
                                            micro-batches that run at once
*_stages_poplar_options                     one for each stage
a variable of several stages                these must share a device; natively they need not
offload_*, replicated_*                     without effect in evaluate and predict: a warning
an accumulating optimizer                   refused where the strategy accumulates, too
"""

import logging
from collections.abc import Sequence

import keras

from millrace.errors import ModelError, OptionError, PlanError
from millrace.extend import (
    Assignment,
    Mode,
    Setup,
    check_made_functions,
    check_pipelined_step,
    find_calls,
    has_own_call,
    leaves,
    scoped_stages,
)
from millrace_ipu.ipu.keras.extensions.arguments import STEPS
from millrace_ipu.ipu.keras.extensions.building import ModelExtension
from millrace_ipu.ipu.keras.extensions.settings import Settings
from millrace_ipu.ipu.ops.pipeline_options import BACKWARD, FORWARD, check_number_of_options
from millrace_ipu.ipu.ops.schedules import check_length
from millrace_ipu.ipu.optimizers.gradient_accumulation_optimizer import AccumulatingOptimizer
from millrace_ipu.tensorflow.no_operation import notes

logger = logging.getLogger("millrace")
_OF_TRAINING = (
    "offload_weight_update_variables",
    "replicated_optimizer_state_sharding",
    "offload_activations",
    "offload_gradient_accumulation_buffers",
)
_DISABLE = "IPUStrategy(enable_keras_extensions=False)"


def check_overrides(model: keras.Model, mode: Mode, is_pipelined: bool) -> None:
    """Refuses overrides of functions that the strategy would not call.

    Args:
        model: the model that is about to run.
        mode: of the loop.
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
            f"{type(model).__name__} {model.name!r} is pipelined and overrides call(), which its "
            "stages would not run. Remove the override, derive the model from keras.Model with a "
            "call() only, or call reset_pipeline_stage_assignment()."
        )


def check_optimizer(model: keras.Model, setter: str) -> None:
    """Refuses an optimizer that accumulates itself, or whose `minimize` would not be called.

    A direct subclass of `keras.optimizers.Optimizer` may have a `minimize`: it overrides none.

    Args:
        model: a model whose gradients accumulate over batches.
        setter: the method that sets their number.

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
                "which is not called where gradients accumulate over several batches. Override "
                "update_step() or apply() instead."
            )


def _check_accumulation(
    model: keras.Model, optimizer: keras.optimizers.Optimizer, setter: str
) -> None:
    steps = getattr(optimizer, "gradient_accumulation_steps", None)
    if not steps and not isinstance(optimizer, AccumulatingOptimizer):
        return
    first = f"gradient_accumulation_steps={steps} of its optimizer" if steps else "its optimizer"
    raise OptionError(
        f"The model {model.name!r} would accumulate gradients twice: by {first} "
        f"{type(optimizer).__name__}, and by the options of its strategy. Compile it with an "
        "optimizer that does not accumulate, and call "
        f"model.{setter}(gradient_accumulation_steps_per_replica=...)."
    )


def check_pipeline(setup: Setup, settings: Settings, assignment: Assignment, mode: Mode) -> None:
    """Refuses pipelines that the IPU would not run.

    Args:
        setup: of the model.
        settings: of the model.
        assignment: its stages.
        mode: of the loop.

    Raises:
        OptionError: for a missing number of micro-batches, or a list of another length than the
            stages.
        PlanError: for a number of micro-batches that does not fit, or a variable on several
            devices.
    """
    model = setup.model
    mapping = setup.options.pipelining.devices_of(assignment.num_stages)
    check_shared_variables(model, assignment, mapping)
    if mode is not Mode.TRAIN:
        _warn_without_training(setup, settings)
        return
    steps = settings.pipelining.steps
    if steps is None:
        raise OptionError(
            f"The pipelined model {model.name!r} has no number of micro-batches for a weight "
            f"update. Call model.set_pipelining_options({STEPS}=...) before fit."
        )
    for stages in (FORWARD, BACKWARD):
        name = f"{stages}_poplar_options"
        check_number_of_options(name, settings.pipelining.more.get(name), assignment.num_stages)
    if assignment.num_stages > 1:  # the native check refuses a pipeline of one stage
        check_length(settings.schedule, mapping, steps, training=True)


def check_shared_variables(
    model: keras.Model, assignment: Assignment, mapping: Sequence[int]
) -> None:
    """Refuses stages on several devices that use one variable.

    Args:
        model: a pipelined model.
        assignment: its stages.
        mapping: the device of each stage.

    Raises:
        PlanError: naming the variable, the stages and their devices.
    """
    if len(mapping) != assignment.num_stages:
        return  # `devices_of_replica` refuses it
    calls = find_calls(model)
    stages = scoped_stages(calls) if assignment.stages is None else assignment.stages
    uses: dict[int, tuple[keras.Variable, set[int]]] = {}
    for leaf, stage in zip(leaves(calls), stages, strict=True):
        if stage is not None:
            for variable in getattr(leaf.operation, "weights", ()):
                uses.setdefault(id(variable), (variable, set()))[1].add(stage)
    for variable, users in uses.values():
        devices = [mapping[stage] for stage in sorted(users)]
        if len(set(devices)) > 1:
            raise PlanError(
                f"The variable '{variable.path}' is used in the pipeline stages {sorted(users)}, "
                f"which are on the devices {devices}. Put these stages on one device with "
                "device_mapping in set_pipelining_options(), or their layers into one stage."
            )


def _warn_without_training(setup: Setup, settings: Settings) -> None:
    """Warns, once for a model, about options without effect where no weights are updated."""
    options = [name for name in _OF_TRAINING if settings.of_either(name)]
    name = setup.model.name
    if options and notes.is_new(f"inference of {name}, {id(setup.model)}: {options}"):
        logger.warning(
            "%s have no effect in evaluate and predict of the pipelined model %r: no weights "
            "are updated there.",
            ", ".join(options),
            name,
        )
