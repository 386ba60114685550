"""`set_pipelining_options` of an extended model.

set_pipelining_options   -> the same, with "grouped" and "sum" for defaults

An explicit None keeps what was set before; free arguments are replaced by every call.
"""

from dataclasses import replace
from typing import Any

from millrace.errors import OptionError
from millrace.ipu.keras.extensions.accumulating import accumulating
from millrace.ipu.keras.extensions.arguments import PIPELINING, check_free
from millrace.ipu.keras.extensions.in_force import put, settings_of
from millrace.ipu.keras.extensions.reasons import PIPELINING_REASONS
from millrace.ipu.ops.schedules import NATIVE
from millrace.options import truth
from millrace.schedules.table import check_at_a_time
from millrace.strategy.controller import Controller


def set_pipelining_options(
    controller: Controller,
    gradient_accumulation_steps_per_replica: int | None = None,
    device_mapping: list[int] | None = None,
    accumulate_outfeed: bool | None = None,
    experimental_normalize_gradients: bool | None = None,
    gradient_accumulation_reduction_method: Any = None,
    **pipelining_kwargs: Any,
) -> None:
    """Chooses how the stages of a pipelined model run.

    Args:
        controller: of the model whose method this becomes.
        gradient_accumulation_steps_per_replica: micro-batches in one update of a replica. Must
            be set before fit.
        device_mapping: for each stage the number of its device within a replica.
        accumulate_outfeed: True lets callbacks see logs once per update.
        experimental_normalize_gradients: True divides by micro-batches and replicas.
        gradient_accumulation_reduction_method: as in `set_gradient_accumulation_options`.
        **pipelining_kwargs: as of `pipelining_ops.pipeline`.

    Raises:
        OptionError: for a number below 1, a mapping that is none, an unknown method or argument,
            or two that exclude each other.
        DTypeError: for a schedule or a mode that is no member of its enum.
        UnsupportedError: for a combination that nothing runs.
    """
    setter = "set_pipelining_options"
    check_free(setter, pipelining_kwargs, PIPELINING, PIPELINING_REASONS)
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
    check_at_a_time(schedule, settings.device_mapping or (), settings.serialization)
    put(controller, settings)


def _mapping(given: Any) -> tuple[int, ...]:
    is_list = isinstance(given, list | tuple) and bool(given)
    if not is_list or not all(isinstance(d, int) and d >= 0 for d in given):
        raise OptionError(
            "device_mapping is a list with the number of a device for each stage, such as [0, 1]. "
            f"Received: {given!r}."
        )
    return tuple(given)
