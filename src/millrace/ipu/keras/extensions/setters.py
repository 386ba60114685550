"""The setters of an extended model. Each replaces a record; options follow from all records.

set_gradient_accumulation_options   -> `accumulation_setter`
set_pipelining_options              -> `pipelining_setter`
set_infeed_queue_options            -> `queue_setters`
set_outfeed_queue_options           -> `queue_setters`
set_replication_options             -> the native one, with "none" for a default
set_asynchronous_callbacks          -> the native one

Each takes the controller of its model first, as the native methods do.
"""

from dataclasses import replace
from typing import Any

from millrace.ipu.keras.extensions.accumulation_setter import set_gradient_accumulation_options
from millrace.ipu.keras.extensions.in_force import put, settings_of
from millrace.ipu.keras.extensions.metric_reduction import metric_reduction
from millrace.ipu.keras.extensions.pipelining_setter import set_pipelining_options
from millrace.ipu.keras.extensions.queue_setters import (
    set_infeed_queue_options,
    set_outfeed_queue_options,
)
from millrace.options import truth
from millrace.strategy.controller import Controller


def set_replication_options(
    controller: Controller, replicated_metric_reduction_method: Any = "NONE"
) -> None:
    """Chooses what is reported of the metrics of several replicas.

    Args:
        controller: of the model whose method this becomes.
        replicated_metric_reduction_method: "NONE" for the last replica's, "LIST" of all, their
            "SUM" or their "MEAN".

    Raises:
        OptionError: for another one.
    """
    metrics = metric_reduction(replicated_metric_reduction_method)
    put(controller, replace(settings_of(controller), metrics=metrics))


def set_asynchronous_callbacks(controller: Controller, asynchronous: bool = False) -> None:
    """Delivers batch callbacks for every step while an execution runs, or once per execution.

    Args:
        controller: of the model whose method this becomes.
        asynchronous: True for every step.

    Raises:
        OptionError: if it is neither True nor False.
    """
    chosen = truth("asynchronous", asynchronous)
    put(controller, replace(settings_of(controller), asynchronous=chosen), keep_functions=True)


SETTERS = (
    set_gradient_accumulation_options,
    set_pipelining_options,
    set_replication_options,
    set_infeed_queue_options,
    set_outfeed_queue_options,
    set_asynchronous_callbacks,
)
