"""The methods that attachment adds to a model: each replaces one record of its options."""

from dataclasses import replace
from typing import Any

from millrace.arguments import refuse_unknown
from millrace.errors import OptionError
from millrace.fit.controller import Controller
from millrace.options import (
    Accumulation,
    Feed,
    reduction,
    truth,
    whole_number,
)
from millrace.precompile.precompile import precompile
from millrace.steps.accumulate import accumulator_dtype
from millrace.strategy.pipeline_methods import PIPELINE_METHODS
from millrace.strategy.recomputation_methods import set_recomputation_options, with_offload
from millrace.strategy.replication_methods import set_replication_options

_ACCUMULATION_REASONS = {
    "opt": "the optimizer is the one given to compile().",
    "num_mini_batches": "set gradient_accumulation_steps_per_replica instead.",
    "experimental_normalize_gradients": (
        "set gradient_accumulation_reduction_method='mean' for True, 'sum' for False."
    ),
}
_FOLLOWS = "it follows from the data given to fit, evaluate or predict."
_FEED_REASONS = {"dataset": _FOLLOWS, "infeed_spec": _FOLLOWS, "element_spec": _FOLLOWS}


def set_gradient_accumulation_options(
    controller: Controller,
    *,
    gradient_accumulation_steps_per_replica: int | None = None,
    gradient_accumulation_reduction_method: Any = None,
    dtype: Any = None,
    offload_weight_update_variables: bool | None = None,
    offload_gradient_accumulation_buffers: bool | None = None,
    **unknown: Any,
) -> None:
    """Lets several steps make one weight update.

    Args:
        controller: of the model whose method this becomes.
        gradient_accumulation_steps_per_replica: steps (batches) in one update; 1 turns it off.
            None keeps the number set before.
        gradient_accumulation_reduction_method: `"mean"` (default) divides by the rows, so that the
            update equals that of one big batch; `"sum"` adds the batches' gradients;
            `"running_mean"` is a mean at any time, so that float16 never has to hold a sum.
            `"mean_then_sum"` and `"running_mean_then_sum"` are means over the batches of a
            replica, added up over replicas. None keeps what was set before.
        dtype: of the accumulator. None is each variable's own, a name is for all, a function of
            the variable chooses for each. Not kept from an earlier call.
        offload_weight_update_variables: True lets the optimizer's values rest in host memory
            between updates; False never; None keeps what was set before, at first: where the
            device has such memory and an update takes several steps.
        offload_gradient_accumulation_buffers: True lets the accumulators rest there between
            steps. None keeps what was set before, at first False.
        **unknown: refused, with the nearest name.

    Raises:
        OptionError: for a number below 1, an unknown method or dtype, an unknown option, or if
            something is to rest in host memory and the device has none.
    """
    setter = "set_gradient_accumulation_options"
    known = (
        "gradient_accumulation_steps_per_replica",
        "gradient_accumulation_reduction_method",
        "dtype",
        "offload_weight_update_variables",
        "offload_gradient_accumulation_buffers",
    )
    refuse_unknown(setter, unknown, known, _ACCUMULATION_REASONS)
    before = controller.setup.options.accumulation
    steps = (
        before.steps
        if gradient_accumulation_steps_per_replica is None
        else whole_number(known[0], gradient_accumulation_steps_per_replica, 1)
    )
    method = (
        before.reduction
        if gradient_accumulation_reduction_method is None
        else reduction(gradient_accumulation_reduction_method)
    )
    for variable in controller.model.trainable_variables:
        accumulator_dtype(dtype, variable)  # refuses now what it would refuse in a trace
    accumulation = Accumulation(steps=steps, reduction=method, dtype=dtype)
    offload = with_offload(
        controller,
        controller.setup.options.replication,
        offload_weight_update_variables=offload_weight_update_variables,
        offload_gradient_accumulation_buffers=offload_gradient_accumulation_buffers,
    )
    controller.put_options(
        replace(controller.setup.options, accumulation=accumulation, offload=offload)
    )


def set_infeed_queue_options(
    controller: Controller,
    *,
    prefetch_depth: int | None = None,
    max_block_bytes: int | None = None,
    max_resident_bytes: int | None = None,
    **unknown: Any,
) -> None:
    """Chooses how data reaches the device. Results do not depend on it.

    Args:
        controller: of the model whose method this becomes.
        prefetch_depth: blocks prepared ahead of the one in use; at least 1.
        max_block_bytes: bytes of one block of stacked batches; an execution of more steps than
            fit is run from several blocks.
        max_resident_bytes: arrays of at most so many bytes in all stay on the device and are
            shuffled there; 0 never keeps any.
        **unknown: refused, with the nearest name.

    Each call replaces all three; None is the default of each.

    Raises:
        OptionError: for a number below its minimum, or an unknown option.
    """
    setter = "set_infeed_queue_options"
    given = {
        "prefetch_depth": (prefetch_depth, 1),
        "max_block_bytes": (max_block_bytes, 1),
        "max_resident_bytes": (max_resident_bytes, 0),
    }
    refuse_unknown(setter, unknown, given, _FEED_REASONS)
    chosen = {
        name: whole_number(name, value, minimum)
        for name, (value, minimum) in given.items()
        if value is not None
    }
    controller.put_options(replace(controller.setup.options, feed=Feed(**chosen)))


def set_asynchronous_callbacks(
    controller: Controller, asynchronous: bool = False, *, stop_within: int | None = None
) -> None:
    """Delivers batch callbacks for every step while an execution runs, or once per execution.

    Takes effect at the next fit, evaluate or predict. Programs that are there stay; those that
    return every step's logs are compiled when they are first needed.

    Args:
        controller: of the model whose method this becomes.
        asynchronous: True calls `on_train_batch_end` and its kind once per step, in order, from
            a worker thread. A callback that reads weights then waits for the execution.
        stop_within: steps after which `fit` has stopped, at most, once a callback sets
            `model.stop_training`; whole updates. 1 stops with the state of that very step. Longer
            executions run in pieces of so many steps. None stops after the execution.

    Raises:
        OptionError: if `asynchronous` is neither True nor False, or `stop_within` is below 1 or
            given where callbacks see no single steps.
    """
    value = truth("asynchronous", asynchronous)
    if stop_within is not None:
        whole_number("stop_within", stop_within, 1)
        if not value:
            raise OptionError(
                f"stop_within={stop_within} does nothing without callbacks for every step. Set "
                "asynchronous=True, or compile with a lower steps_per_execution."
            )
    options = replace(
        controller.setup.options, asynchronous_callbacks=value, stop_within=stop_within
    )
    controller.put_options(options, keep_functions=True)


METHODS = (
    set_gradient_accumulation_options,
    set_infeed_queue_options,
    set_asynchronous_callbacks,
    set_replication_options,
    set_recomputation_options,
    precompile,
    *PIPELINE_METHODS,
)
