"""The keyword arguments of the setters: a check of each, and reasons for refusing others.

num_mini_batches, gradient_accumulation_count    set gradient_accumulation_steps_per_replica
opt, optimizer_function                          given to Keras's compile()
inputs, infeed_queue, dataset, ...               given to fit
outfeed_loss, outfeed_mask, outfeed_mode         read by callbacks and predict

`native.py` converts those that are taken to native options.
"""

import enum
from collections.abc import Callable, Mapping
from typing import TypeAlias

from millrace.extend import MetricReduction, refuse_unknown, truth, whole_number
from millrace_ipu.ipu.enums import member_by_name
from millrace_ipu.ipu.ops.pipeline_options import (
    check_sharded_state,
    list_of_options,
    refuse_continuous_updates,
)
from millrace_ipu.tensorflow.no_operation import warn_no_effect

STEPS = "gradient_accumulation_steps_per_replica"


Check: TypeAlias = Callable[[str, object], object]  # of an argument's name and value


class ReplicatedMetricReductionMethod(enum.Enum):
    """The metrics that are reported for several replicas."""

    NONE = 1
    LIST = 2
    SUM = 3
    MEAN = 4


def metric_reduction(value: object) -> MetricReduction:
    """Returns the native method for one that may be given by its name in any case.

    Raises:
        OptionError: for anything else, with all names.
    """
    name = "replicated_metric_reduction_method"
    return MetricReduction[member_by_name(ReplicatedMetricReductionMethod, name, value).name]


def check_keywords(
    setter: str,
    arguments: Mapping[str, object],
    checks: Mapping[str, Check],
    reasons: Mapping[str, str],
) -> None:
    """Checks the keyword arguments of a setter.

    Args:
        setter: its name.
        arguments: of this call.
        checks: of all arguments that it takes.
        reasons: for refusing others.

    Raises:
        OptionError: for an unknown argument, with the reason or the nearest name, and for
            optimizer state that is to be sharded but not offloaded.
        UnsupportedError: for options that the IPU never implemented.
    """
    refuse_unknown(setter, [name for name in arguments if name not in checks], checks, reasons)
    for name, value in arguments.items():
        checks[name](name, value)
    check_sharded_state(
        arguments.get("replicated_optimizer_state_sharding"),
        arguments.get("offload_weight_update_variables"),
    )


_AUTOMATIC = "it is set automatically, from the model and from the data given to fit."
_IN_KERAS = "it is not compatible with Keras"
ACCUMULATION_REASONS = {
    "opt": "the optimizer is the one given to compile().",
    "num_mini_batches": f"set {STEPS} instead.",
}
PIPELINING_REASONS = {
    "gradient_accumulation_count": f"set {STEPS} instead.",
    **dict.fromkeys(
        ("computational_stages", "repeat_count", "inputs", "infeed_queue", "outfeed_queue"),
        _AUTOMATIC,
    ),
    "optimizer_function": f"{_AUTOMATIC} The optimizer is the one given to compile().",
    "outfeed_loss": f"{_IN_KERAS}. Read the loss from the logs of a callback.",
    "outfeed_mask": f"{_IN_KERAS}. Read logs in a callback, and outputs from predict.",
}
_INFEED = ("dataset", "infeed_spec", "element_spec")
_OUTFEED = ("outfeed_mode", "device_ordinal")
_READS_ALL = f"{_IN_KERAS}. Remove it: fit reads every result."
INFEED_REASONS: Mapping[str, str] = dict.fromkeys(_INFEED, _AUTOMATIC)
OUTFEED_REASONS: Mapping[str, str] = dict.fromkeys(_OUTFEED, _READS_ALL)


def _any(name: str, value: object) -> None:
    """Takes any value; it is checked where it is used."""


def _switch(name: str, value: object) -> None:
    if value is not None:
        truth(name, value)


def _without_effect(advice: str) -> Check:
    def warn(name: str, value: object) -> None:
        if value is not None:
            warn_no_effect(name, advice)

    return warn


def _stage_options(name: str, value: object) -> None:
    if value is not None:
        list_of_options(name, value)


_OPTIMIZER: Mapping[str, Check] = {
    "offload_weight_update_variables": _switch,
    "replicated_optimizer_state_sharding": _switch,
    "name": _any,
}
ACCUMULATION: Mapping[str, Check] = {**_OPTIMIZER, "dtype": _any, "verify_usage": _any}
PIPELINING: Mapping[str, Check] = {
    **_OPTIMIZER,
    "gradient_accumulation_dtype": _any,
    "pipeline_schedule": _any,
    "recomputation_mode": _any,
    "forward_propagation_stages_poplar_options": _stage_options,
    "backward_propagation_stages_poplar_options": _stage_options,
    "weight_update_poplar_options": _any,
    "offload_activations": _switch,
    "offload_gradient_accumulation_buffers": _switch,
    "replicated_weight_sharding": _switch,
    "offload_weights": _switch,
    "batch_serialization_iterations": lambda name, value: whole_number(name, value, 1),
    "continuous_weight_updates": lambda _, value: refuse_continuous_updates(value),
    "accumulate_outfeed_dtype": _without_effect("Metrics accumulate in their own dtype."),
}
