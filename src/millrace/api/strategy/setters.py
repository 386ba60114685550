"""The setters of options. The table of options has their arguments; here are checks of several."""

from dataclasses import replace

from millrace.api.strategy.option_setter import OptionArguments, setter
from millrace.base.options import (
    AccumulatorDtype,
    Options,
    Recomputation,
    RecomputationMode,
)
from millrace.errors import OptionError
from millrace.programs.steps.accumulate import accumulator_dtype
from millrace.run.fit.controller import Controller
from millrace.run.fit.offloading import check_offload
from millrace.run.schedules.table import check_batch_serialization, check_choice


@setter(
    reasons={
        "opt": "the optimizer is the one given to compile().",
        "num_mini_batches": "set gradient_accumulation_steps_per_replica instead.",
        "experimental_normalize_gradients": (
            "set gradient_accumulation_reduction_method='mean' for True, 'sum' for False."
        ),
    }
)
def set_gradient_accumulation_options(
    controller: Controller, options: Options, arguments: OptionArguments
) -> Options:
    """Lets several steps make one weight update.

    Raises:
        OptionError: for an invalid value, an unknown option, or offloading on a device without
            host memory.
    """
    _check_dtype(controller, arguments.get("dtype"), options.accumulation.dtype)
    check_offload(options.offload, options.replication, controller.setup.devices)
    return options


_FOLLOWS = "it follows from the model, its compile() and the data given to fit."


@setter(
    reasons={
        "gradient_accumulation_count": "set gradient_accumulation_steps_per_replica instead.",
        "experimental_normalize_gradients": (
            "set gradient_accumulation_reduction_method='mean' for True, 'sum' for False."
        ),
        "computational_stages": _FOLLOWS,
        "repeat_count": _FOLLOWS,
        "inputs": _FOLLOWS,
        "infeed_queue": _FOLLOWS,
        "outfeed_queue": _FOLLOWS,
        "optimizer_function": "the optimizer is the one given to compile().",
        "outfeed_loss": "fit reports the loss. Read it from the logs of a callback.",
        "outfeed_mask": "fit reports the logs only, and predict the outputs.",
        "accumulate_outfeed": "metrics always accumulate on the device.",
        "accumulate_outfeed_dtype": (
            "metrics always accumulate on the device, in their own dtype."
        ),
        "continuous_weight_updates": "weights stand still within an update.",
    }
)
def set_pipelining_options(
    controller: Controller, options: Options, arguments: OptionArguments
) -> Options:
    """Chooses how the stages of a pipelined model run. The numbers do not depend on it.

    Raises:
        OptionError: for an invalid value, an unknown option, or offloading on devices without
            host memory.
        ScheduleError: for an unknown schedule.
        UnsupportedError: for `batch_serialization_iterations` on several devices, or in another
            schedule than `"sequential"`.
    """
    pipelining = options.pipelining
    if "pipeline_schedule" in arguments:
        check_choice(pipelining.schedule_in_force)
    _check_dtype(controller, arguments.get("gradient_accumulation_dtype"), pipelining.dtype)
    check_batch_serialization(
        pipelining.schedule_in_force,
        pipelining.device_mapping or (),
        pipelining.batch_serialization,
    )
    check_offload(options.offload, options.replication, controller.setup.devices)
    if "recomputation_mode" in arguments:
        return _without_budget(options)
    return options


@setter(
    reasons={
        "replicas": "their number follows from the devices of the strategy and of the pipeline.",
    }
)
def set_replication_options(
    controller: Controller, options: Options, arguments: OptionArguments
) -> Options:
    """Chooses the metrics that replicas report, and the values that they share out.

    A value whose axes the replicas cannot share out equally stays whole.

    Raises:
        OptionError: for an invalid value, an unknown option, or offloading on devices without
            host memory, or of weights that are not shared out.
    """
    check_offload(options.offload, options.replication, controller.setup.devices)
    return options


@setter(
    reasons={
        "checkpoints": (
            "put millrace.layers.RecomputationCheckpoint() where values are to be kept, or set "
            "budget= and let millrace choose."
        ),
        "policy": (
            "set budget= and let millrace choose what is kept, or mode='auto' with boundaries."
        ),
    },
    defaults={"mode": "auto"},
)
def set_recomputation_options(
    controller: Controller, options: Options, arguments: OptionArguments
) -> Options:
    """Makes backward compute values again instead of keeping them from forward.

    Losses, weights and dropout masks stay those of plain training. A mode and a budget exclude
    each other: the one that is set last is in force. A call that names no mode sets `"auto"`, or
    the budget that it names; `mode=None` keeps the one in force.

    Raises:
        OptionError: for an invalid value, an unknown option, or a mode and a budget in one call.
    """
    if "budget" not in arguments:
        return _without_budget(options) if "mode" in arguments else options
    mode, budget = options.recomputation.mode, arguments["budget"]
    if "mode" in arguments and mode is not RecomputationMode.AUTO:
        raise OptionError(
            f"mode={mode.value!r} says what is computed again, and budget={budget!r} lets "
            "millrace choose. Set one of them, and leave the other out."
        )
    recomputation = replace(options.recomputation, mode=RecomputationMode.AUTO)
    return replace(options, recomputation=recomputation)


_FROM_DATA = "it follows from the data given to fit, evaluate or predict."


@setter(
    reasons={"dataset": _FROM_DATA, "infeed_spec": _FROM_DATA, "element_spec": _FROM_DATA},
)
def set_infeed_queue_options(
    controller: Controller, options: Options, arguments: OptionArguments
) -> Options:
    """Chooses how data reaches the device. Results do not depend on it.

    Raises:
        OptionError: for an invalid value, or an unknown option.
    """
    return options


@setter(by_position=("asynchronous",), keeps_functions=True)
def set_asynchronous_callbacks(
    controller: Controller, options: Options, arguments: OptionArguments
) -> Options:
    """Delivers batch callbacks for every step while an execution runs, or once per execution.

    Takes effect at the next fit, evaluate or predict. Compiled programs stay; those that return
    every step's logs are compiled when they are first needed.

    Raises:
        OptionError: for an invalid value, or `stop_within` without callbacks for every step.
    """
    if options.asynchronous_callbacks or options.stop_within is None:
        return options
    if "stop_within" in arguments:
        raise OptionError(
            f"stop_within={options.stop_within} needs callbacks for every step. Set "
            "asynchronous=True, or compile with a lower steps_per_execution."
        )
    return replace(options, stop_within=None)  # it needs callbacks for every step


SETTERS = (
    set_gradient_accumulation_options,
    set_infeed_queue_options,
    set_asynchronous_callbacks,
    set_replication_options,
    set_recomputation_options,
    set_pipelining_options,
)


def _check_dtype(controller: Controller, argument: object, dtype: AccumulatorDtype) -> None:
    """Refuses a dtype of accumulators when it is set, not in a trace."""
    if argument is not None:
        for variable in controller.model.trainable_variables:
            accumulator_dtype(dtype, variable)


def _without_budget(options: Options) -> Options:
    recomputation = Recomputation(mode=options.recomputation.mode)
    return replace(options, recomputation=recomputation)
