"""The setters of an extended model.

set_gradient_accumulation_options   the native one, with "sum" for a default
set_pipelining_options              the native one, with "grouped" and "sum" for defaults
set_replication_options             the native one, with "none" for a default
set_asynchronous_callbacks          the native one
set_infeed_queue_options            prefetch_depth
set_outfeed_queue_options           without effect: results wait until they are read

arguments -> new settings of the model (settings.py) -> its native options (native.py)

An argument that is None keeps the earlier value; every call replaces all keyword arguments. Each
setter takes the controller of its model first, as the native methods do.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from millrace.errors import OptionError
from millrace.extend import Controller, check_batch_serialization, refuse_unknown, truth
from millrace_ipu.ipu.gradient_accumulation import ReductionMethod
from millrace_ipu.ipu.keras.extensions.arguments import (
    ACCUMULATION,
    ACCUMULATION_REASONS,
    INFEED_REASONS,
    OUTFEED_REASONS,
    PIPELINING,
    PIPELINING_REASONS,
    ReplicatedMetricReductionMethod,
    check_keywords,
    metric_reduction,
)
from millrace_ipu.ipu.keras.extensions.native import put
from millrace_ipu.ipu.keras.extensions.settings import accumulating, settings_of
from millrace_ipu.ipu.ops.schedules import NATIVE


def set_gradient_accumulation_options(
    controller: Controller,
    gradient_accumulation_steps_per_replica: int | None = None,
    experimental_normalize_gradients: bool | ReductionMethod | None = None,
    gradient_accumulation_reduction_method: ReductionMethod | None = None,
    **gradient_accumulation_optimizer_kwargs: object,
) -> None:
    """Accumulates the gradients of several batches into one weight update.

    For a pipelined model, call `set_pipelining_options` instead.

    Args:
        controller: of the model whose method this becomes.
        gradient_accumulation_steps_per_replica: number of batches in one update of a replica.
        experimental_normalize_gradients: True divides by batches and replicas.
        gradient_accumulation_reduction_method: "sum", "mean" over the batches of a replica, or
            "running_mean"; at first "sum". May be the second argument, as in later releases.
        **gradient_accumulation_optimizer_kwargs: `offload_weight_update_variables`,
            `replicated_optimizer_state_sharding`, `dtype`.

    Raises:
        OptionError: for a number below 1, an unknown method or argument, or two arguments that
            exclude each other.
    """
    more = gradient_accumulation_optimizer_kwargs
    setter = "set_gradient_accumulation_options"
    check_keywords(setter, more, ACCUMULATION, ACCUMULATION_REASONS)
    settings = settings_of(controller)
    accumulation = accumulating(
        settings.accumulation,
        gradient_accumulation_steps_per_replica,
        experimental_normalize_gradients,
        gradient_accumulation_reduction_method,
        more,
    )
    put(controller, replace(settings, accumulation=accumulation))


def set_pipelining_options(
    controller: Controller,
    gradient_accumulation_steps_per_replica: int | None = None,
    device_mapping: list[int] | None = None,
    accumulate_outfeed: bool | None = None,
    experimental_normalize_gradients: bool | ReductionMethod | None = None,
    gradient_accumulation_reduction_method: ReductionMethod | None = None,
    **pipelining_kwargs: object,
) -> None:
    """Sets the options of a pipelined model.

    Args:
        controller: of the model whose method this becomes.
        gradient_accumulation_steps_per_replica: number of micro-batches in one update of a
            replica. Must be set before fit.
        device_mapping: for each stage the number of its device within a replica.
        accumulate_outfeed: True delivers logs to callbacks once per update.
        experimental_normalize_gradients: True divides by micro-batches and replicas.
        gradient_accumulation_reduction_method: as in `set_gradient_accumulation_options`.
        **pipelining_kwargs: as for `pipelining_ops.pipeline`.

    Raises:
        OptionError: for a number below 1, an invalid mapping, an unknown method or argument, or
            two arguments that exclude each other.
        DTypeError: for a schedule or a mode that is not a member of its enumeration.
        UnsupportedError: for a combination that cannot run.
    """
    setter = "set_pipelining_options"
    check_keywords(setter, pipelining_kwargs, PIPELINING, PIPELINING_REASONS)
    before = settings_of(controller)
    settings = replace(
        before,
        pipelining=accumulating(
            before.pipelining,
            gradient_accumulation_steps_per_replica,
            experimental_normalize_gradients,
            gradient_accumulation_reduction_method,
            pipelining_kwargs,
        ),
        device_mapping=before.device_mapping
        if device_mapping is None
        else _mapping(device_mapping),
        accumulate_outfeed=before.accumulate_outfeed
        if accumulate_outfeed is None
        else truth("accumulate_outfeed", accumulate_outfeed),
    )
    schedule = NATIVE[settings.schedule]
    check_batch_serialization(schedule, settings.device_mapping or (), settings.serialization)
    put(controller, settings)


def set_replication_options(
    controller: Controller,
    replicated_metric_reduction_method: ReplicatedMetricReductionMethod | str = "NONE",
) -> None:
    """Chooses the metrics that are reported for several replicas.

    Args:
        controller: of the model whose method this becomes.
        replicated_metric_reduction_method: "NONE" for the last replica's, "LIST" of all, their
            "SUM" or their "MEAN".

    Raises:
        OptionError: for another method.
    """
    metrics = metric_reduction(replicated_metric_reduction_method)
    put(controller, replace(settings_of(controller), metrics=metrics))


def set_infeed_queue_options(controller: Controller, **kwargs: object) -> None:
    """Sets the options of the queue of data. Values are checked when fit builds the queue.

    Args:
        controller: of the model whose method this becomes.
        **kwargs: `prefetch_depth`, 1 to 255.

    Raises:
        OptionError: for an option that follows from the data.
    """
    refused = [name for name in kwargs if name in INFEED_REASONS]
    refuse_unknown("set_infeed_queue_options", refused, (), INFEED_REASONS)
    put(controller, replace(settings_of(controller), infeed=dict(kwargs)))


def set_outfeed_queue_options(controller: Controller, **kwargs: object) -> None:
    """Sets the options of the queue of results. Values are checked when fit builds the queue.

    Args:
        controller: of the model whose method this becomes.
        **kwargs: `buffer_depth`, from 1 on; the queue has no limit here.

    Raises:
        OptionError: for an option that does not go with Keras.
    """
    refused = [name for name in kwargs if name in OUTFEED_REASONS]
    refuse_unknown("set_outfeed_queue_options", refused, (), OUTFEED_REASONS)
    put(controller, replace(settings_of(controller), outfeed=dict(kwargs)))


def set_asynchronous_callbacks(controller: Controller, asynchronous: bool = False) -> None:
    """Calls batch callbacks for every step while an execution runs, or once per execution.

    Args:
        controller: of the model whose method this becomes.
        asynchronous: True for every step.

    Raises:
        OptionError: if it is neither True nor False.
    """
    is_on = truth("asynchronous", asynchronous)
    put(controller, replace(settings_of(controller), asynchronous=is_on), keep_functions=True)


SETTERS = (
    set_gradient_accumulation_options,
    set_pipelining_options,
    set_replication_options,
    set_infeed_queue_options,
    set_outfeed_queue_options,
    set_asynchronous_callbacks,
)


def _mapping(mapping: object) -> tuple[int, ...]:
    is_list = isinstance(mapping, list | tuple) and bool(mapping)
    numbers = tuple(cast(Sequence[int], mapping)) if is_list else ()
    if not is_list or not all(isinstance(d, int) and d >= 0 for d in numbers):
        raise OptionError(
            "device_mapping is a list with the number of a device for each stage, such as [0, 1]. "
            f"Received: {mapping!r}."
        )
    return numbers
