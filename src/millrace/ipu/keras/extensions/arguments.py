"""The free arguments of the setters, with a check of each, and why others are not taken.

num_mini_batches, gradient_accumulation_count    set gradient_accumulation_steps_per_replica
opt, optimizer_function                          given to Keras's compile()
inputs, infeed_queue, dataset, ...               given to fit
outfeed_loss, outfeed_mask, outfeed_mode         read by callbacks and predict

`native.py` says what becomes of those that are taken.
"""

import enum
from collections.abc import Callable, Mapping
from typing import Any

from millrace.arguments import refuse_unknown
from millrace.errors import OptionError, UnsupportedError
from millrace.ipu.no_effect import warn_no_effect
from millrace.ipu.ops.pipeline_options import check_list_of_options, check_sharded_state
from millrace.options import MetricReduction, truth, whole_number

STEPS = "gradient_accumulation_steps_per_replica"


class ReplicatedMetricReductionMethod(enum.Enum):
    """Which metrics of several replicas are reported."""

    NONE = 1
    LIST = 2
    SUM = 3
    MEAN = 4


def metric_reduction(value: Any) -> MetricReduction:
    """Returns the native method; it may be given by its name in any case.

    Raises:
        OptionError: listing the names.
    """
    names = ReplicatedMetricReductionMethod.__members__
    if isinstance(value, ReplicatedMetricReductionMethod):
        return MetricReduction[value.name]
    if not isinstance(value, str) or value.upper() not in names:
        raise OptionError(
            f"replicated_metric_reduction_method must be one of {list(names)}. Received: {value!r}."
        )
    return MetricReduction[value.upper()]


def check_free(
    setter: str,
    given: Mapping[str, Any],
    known: Mapping[str, Callable[[str, Any], None]],
    reasons: Mapping[str, str],
) -> None:
    """Checks the free arguments of a setter.

    Raises:
        OptionError: for one that it does not take, with the reason or the nearest name, and for
            optimizer state to be shared out that must not be offloaded.
        UnsupportedError: for what was never implemented.
    """
    refuse_unknown(setter, [name for name in given if name not in known], known, reasons)
    for name, value in given.items():
        known[name](name, value)
    check_sharded_state(
        given.get("replicated_optimizer_state_sharding"),
        given.get("offload_weight_update_variables"),
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


def _any(name: str, value: Any) -> None:
    """Takes any value: what it becomes is checked where it is used."""


def _switch(name: str, value: Any) -> None:
    if value is not None:
        truth(name, value)


def _inert(advice: str) -> Callable[[str, Any], None]:
    def say(name: str, value: Any) -> None:
        if value is not None:
            warn_no_effect(name, advice)

    return say


def _iterations(name: str, value: Any) -> None:
    whole_number(name, value, 1)


def _still(name: str, value: Any) -> None:
    if value:
        raise UnsupportedError(
            "continuous_weight_updates=True was never implemented: weights stand still within an "
            "update. Leave it out."
        )


def _stage_options(name: str, value: Any) -> None:
    if value is not None:
        check_list_of_options(name, value)


_OPTIMIZER = {
    "offload_weight_update_variables": _switch,
    "replicated_optimizer_state_sharding": _switch,
    "name": _any,
}
ACCUMULATION = {**_OPTIMIZER, "dtype": _any, "verify_usage": _any}
PIPELINING = {
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
    "batch_serialization_iterations": _iterations,
    "continuous_weight_updates": _still,
    "accumulate_outfeed_dtype": _inert("Metrics accumulate in their own dtype."),
}
