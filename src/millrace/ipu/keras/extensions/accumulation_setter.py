"""`set_gradient_accumulation_options` of an extended model.

set_gradient_accumulation_options   -> the same, with "sum" for a default

An explicit None keeps what was set before; free arguments are replaced by every call.
"""

from dataclasses import replace
from typing import Any

from millrace.ipu.keras.extensions.accumulating import accumulating
from millrace.ipu.keras.extensions.arguments import ACCUMULATION, check_free
from millrace.ipu.keras.extensions.in_force import put, settings_of
from millrace.ipu.keras.extensions.reasons import ACCUMULATION_REASONS
from millrace.strategy.controller import Controller


def set_gradient_accumulation_options(
    controller: Controller,
    gradient_accumulation_steps_per_replica: int | None = None,
    experimental_normalize_gradients: bool | None = None,
    gradient_accumulation_reduction_method: Any = None,
    **gradient_accumulation_optimizer_kwargs: Any,
) -> None:
    """Lets several batches make one weight update. A pipelined model has options of its own.

    Args:
        controller: of the model whose method this becomes.
        gradient_accumulation_steps_per_replica: batches in one update of a replica.
        experimental_normalize_gradients: True divides by batches and replicas.
        gradient_accumulation_reduction_method: "sum", "mean" over the batches of a replica, or
            "running_mean"; at first "sum". May be given second, as in later releases.
        **gradient_accumulation_optimizer_kwargs: `offload_weight_update_variables`,
            `replicated_optimizer_state_sharding`, `dtype`.

    Raises:
        OptionError: for a number below 1, an unknown method or argument, or two that exclude
            each other.
    """
    more = gradient_accumulation_optimizer_kwargs
    setter = "set_gradient_accumulation_options"
    check_free(setter, more, ACCUMULATION, ACCUMULATION_REASONS)
    settings = settings_of(controller)
    accumulation = accumulating(
        settings.accumulation,
        gradient_accumulation_steps_per_replica,
        experimental_normalize_gradients,
        gradient_accumulation_reduction_method,
        more,
    )
    put(controller, replace(settings, accumulation=accumulation))
