"""The methods that make an attached model a pipeline."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from millrace.arguments import refuse_unknown
from millrace.errors import OptionError
from millrace.fit.controller import Controller
from millrace.options import (
    CompilerOptions,
    Pipelining,
    Recomputation,
    reduction,
    whole_number,
)
from millrace.options import recomputation_mode as find_mode
from millrace.pipelines.assignment.costs import balanced, stage_summary
from millrace.schedules.table import check_at_a_time, check_choice
from millrace.steps.accumulate import accumulator_dtype
from millrace.strategy.recomputation_methods import with_offload
from millrace.strategy.replication_methods import with_sharding

_AUTOMATIC = "it follows from the model, its compile() and the data given to fit."
_REASONS = {
    "gradient_accumulation_count": "set gradient_accumulation_steps_per_replica instead.",
    "experimental_normalize_gradients": (
        "set gradient_accumulation_reduction_method='mean' for True, 'sum' for False."
    ),
    **dict.fromkeys(
        ("computational_stages", "repeat_count", "inputs", "infeed_queue", "outfeed_queue"),
        _AUTOMATIC,
    ),
    "optimizer_function": "the optimizer is the one given to compile().",
    "outfeed_loss": "fit reports the loss. Read it from the logs of a callback.",
    "outfeed_mask": "fit reports the logs only, and predict the outputs.",
    "accumulate_outfeed": "metrics always accumulate on the device.",
    "accumulate_outfeed_dtype": "metrics always accumulate on the device, in their own dtype.",
    "continuous_weight_updates": "weights stand still within an update.",
    "forward_propagation_stages_poplar_options": (
        "set forward_propagation_stages_compiler_options, with the names of XLA."
    ),
    "backward_propagation_stages_poplar_options": (
        "set backward_propagation_stages_compiler_options, with the names of XLA."
    ),
    "weight_update_poplar_options": ("set weight_update_compiler_options, with the names of XLA."),
}


def set_pipelining_options(
    controller: Controller,
    *,
    gradient_accumulation_steps_per_replica: int | None = None,
    device_mapping: Sequence[int] | None = None,
    gradient_accumulation_reduction_method: Any = None,
    pipeline_schedule: Any = None,
    gradient_accumulation_dtype: Any = None,
    forward_propagation_stages_compiler_options: Sequence[CompilerOptions] | None = None,
    backward_propagation_stages_compiler_options: Sequence[CompilerOptions] | None = None,
    weight_update_compiler_options: CompilerOptions | None = None,
    replicated_optimizer_state_sharding: bool | None = None,
    replicated_weight_sharding: bool | None = None,
    recomputation_mode: Any = None,
    offload_weight_update_variables: bool | None = None,
    offload_activations: bool | None = None,
    offload_gradient_accumulation_buffers: bool | None = None,
    offload_weights: bool | None = None,
    batch_serialization_iterations: int = 1,
    **unknown: Any,
) -> None:
    """Chooses how the stages of a pipelined model run. The numbers do not depend on it.

    Args:
        controller: of the model whose method this becomes.
        gradient_accumulation_steps_per_replica: micro-batches (steps) in one weight update. Must be
            set before fit; evaluate and predict need none. None keeps what was set before.
        device_mapping: for each stage the place of its device in `strategy.devices`. Stages may
            share devices. None keeps what was set before; at first stage i is on device i.
        gradient_accumulation_reduction_method: as in `set_gradient_accumulation_options`. None
            keeps what was set before.
        pipeline_schedule: `"1f1b"`, `"grouped"`, `"gpipe"`, `"sequential"`, `"looped"`,
            `"zero_bubble"`, a function of the numbers of stages and of micro-batches, or the
            schedule as text (`docs/schedules.md`). None is `"1f1b"`, with
            `batch_serialization_iterations` it is `"sequential"`.
        gradient_accumulation_dtype: of the accumulators: None is each variable's own, a name is
            for all, a function of the variable chooses for each.
        forward_propagation_stages_compiler_options: for each stage a dict of options of XLA.
        backward_propagation_stages_compiler_options: the same for the backward passes.
        weight_update_compiler_options: a dict of options of XLA for the update.
        replicated_optimizer_state_sharding: as in `set_replication_options`; None keeps it.
        replicated_weight_sharding: as in `set_replication_options`; None keeps it.
        recomputation_mode: the mode of `set_recomputation_options`; None keeps it.
        offload_weight_update_variables: True lets the optimizer's values rest in host memory
            between updates; False never; None keeps what was set before, at first: where the
            devices have such memory.
        offload_activations: True keeps activations there until their backward. None keeps what was
            set before, at first: with `batch_serialization_iterations`, where the devices have
            such memory.
        offload_gradient_accumulation_buffers: True keeps the accumulators there. None has the same
            meaning as for `offload_activations`.
        offload_weights: as in `set_replication_options`; None keeps it.
        batch_serialization_iterations: micro-batches that a stage runs before the next stage
            starts. An update then has that many times `gradient_accumulation_steps_per_replica`.
            More than 1 needs all stages on one device, where they are unless mapped otherwise.
        **unknown: refused, with the nearest name or what to set instead.

    What was set before stays where an argument is None, except for six: `pipeline_schedule`,
    `gradient_accumulation_dtype`, the three compiler options and `batch_serialization_iterations`
    go back to their defaults in every call that leaves them out.

    Raises:
        OptionError: for an invalid value or an unknown option.
        ScheduleError: for an unknown schedule.
        UnsupportedError: for several micro-batches at a time on several devices, or in another
            schedule than `"sequential"`.
    """
    setter = "set_pipelining_options"
    refuse_unknown(setter, unknown, _names(set_pipelining_options), _REASONS)
    before = controller.setup.options.pipelining
    serialization = whole_number(_SERIALIZATION, batch_serialization_iterations, 1)
    if pipeline_schedule is None:
        pipeline_schedule = "sequential" if serialization > 1 else Pipelining().schedule
    check_choice(pipeline_schedule)
    for variable in controller.model.trainable_variables:
        accumulator_dtype(gradient_accumulation_dtype, variable)
    steps, method = gradient_accumulation_steps_per_replica, gradient_accumulation_reduction_method
    pipelining = Pipelining(
        steps=before.steps if steps is None else whole_number(_STEPS, steps, 1),
        reduction=before.reduction if method is None else reduction(method),
        dtype=gradient_accumulation_dtype,
        schedule=pipeline_schedule,
        device_mapping=before.device_mapping
        if device_mapping is None
        else _mapping(device_mapping),
        forward_options=_stage_options(
            "forward_propagation_stages_compiler_options",
            forward_propagation_stages_compiler_options,
        ),
        backward_options=_stage_options(
            "backward_propagation_stages_compiler_options",
            backward_propagation_stages_compiler_options,
        ),
        update_options=_options("weight_update_compiler_options", weight_update_compiler_options),
        batch_serialization=serialization,
    )
    check_at_a_time(pipelining.schedule, pipelining.device_mapping or (), serialization)
    replication = with_sharding(
        controller.setup.options.replication,
        replicated_optimizer_state_sharding,
        replicated_weight_sharding,
    )
    recomputation = controller.setup.options.recomputation
    if recomputation_mode is not None:
        recomputation = Recomputation(mode=find_mode(recomputation_mode))
    offload = with_offload(
        controller,
        replication,
        offload_weight_update_variables=offload_weight_update_variables,
        offload_activations=offload_activations,
        offload_gradient_accumulation_buffers=offload_gradient_accumulation_buffers,
        offload_weights=offload_weights,
    )
    controller.put_options(
        replace(
            controller.setup.options,
            pipelining=pipelining,
            replication=replication,
            recomputation=recomputation,
            offload=offload,
        )
    )


def set_pipeline_stage_assignment(
    controller: Controller, assignment: Any, *, num_stages: int | None = None
) -> None:
    """Chooses the stage of each layer call.

    Args:
        controller: of the model whose method this becomes.
        assignment: for a Sequential a list of whole numbers, one for each layer; for any model
            the list of `get_pipeline_stage_assignment`, with stages set. `"auto"` balances the
            FLOPs of the calls over `num_stages`.
        num_stages: of `"auto"`.

    Raises:
        OptionError: if the list does not fit the model, has gaps, or flows backwards.
        ModelError: if it is a subclassed model, or `"auto"`, and the model is not built.
    """
    if isinstance(assignment, str):
        controller.setup.stages.put(balanced(controller.model, assignment, num_stages))
    elif num_stages is not None:
        raise OptionError(
            f"num_stages={num_stages} goes with the assignment 'auto'. A list says by itself how "
            "many stages there are: leave num_stages out."
        )
    else:
        controller.setup.stages.set(assignment)
    controller.put_options(controller.setup.options)


def get_pipeline_stage_assignment(controller: Controller) -> list[Any]:
    """Returns an object for each layer call, in execution order, with its stage or None.

    Set `pipeline_stage` of the objects, and give the list to `set_pipeline_stage_assignment`.

    Raises:
        ModelError: if it is a subclassed model that is not built.
    """
    return controller.setup.stages.get()


def reset_pipeline_stage_assignment(controller: Controller) -> None:
    """Makes the model one that is not pipelined."""
    controller.setup.stages.reset()
    controller.put_options(controller.setup.options)


def print_pipeline_stage_assignment_summary(
    controller: Controller,
    line_length: int | None = None,
    print_fn: Callable[[str], Any] | None = None,
) -> None:
    """Prints the stage of each layer call, and the parameters and FLOPs of each stage.

    Args:
        controller: of the model whose method this becomes.
        line_length: characters of a line.
        print_fn: called with each line; None is `print`.

    Raises:
        OptionError: if `line_length` is no number, or `print_fn` no function.
    """
    if line_length is not None:
        whole_number("line_length", line_length, 1)
    if print_fn is not None and not callable(print_fn):
        raise OptionError(
            f"print_fn must be a function of one line. Received: {print_fn!r}. Set print_fn=print, "
            "or leave it out."
        )
    for line in stage_summary(controller.model, controller.setup.stages.assignment(), line_length):
        (print_fn or print)(line)


PIPELINE_METHODS = (
    set_pipelining_options,
    set_pipeline_stage_assignment,
    get_pipeline_stage_assignment,
    reset_pipeline_stage_assignment,
    print_pipeline_stage_assignment_summary,
)

_STEPS = "gradient_accumulation_steps_per_replica"
_SERIALIZATION = "batch_serialization_iterations"


def _names(method: Callable[..., Any]) -> list[str]:
    kinds = inspect.signature(method).parameters.values()
    return [p.name for p in kinds if p.kind is p.KEYWORD_ONLY]


def _mapping(mapping: Any) -> tuple[int, ...]:
    if not isinstance(mapping, Sequence) or isinstance(mapping, str) or not mapping:
        raise OptionError(
            "device_mapping must be a list with a device number for each stage, such as [0, 1]. "
            f"Received: {mapping!r}."
        )
    return tuple(whole_number(f"device_mapping[{k}]", d, 0) for k, d in enumerate(mapping))


def _stage_options(name: str, given: Any) -> tuple[CompilerOptions, ...] | None:
    if given is None:
        return None
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise OptionError(
            f"{name} must be a list with a dict of compiler options for each stage. Received: "
            f"{given!r}."
        )
    return tuple(_options(f"{name}[{k}]", each) or {} for k, each in enumerate(given))


def _options(name: str, given: Any) -> CompilerOptions | None:
    if given is not None and not isinstance(given, Mapping):
        raise OptionError(
            f"{name} must be a dict of compiler options of XLA. Received: {given!r}. Set {{}} for "
            "none."
        )
    return given
