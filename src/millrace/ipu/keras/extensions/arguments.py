"""The free arguments that the setters take, and a check of each.

gradient_accumulation_dtype, dtype      -> `dtype` of the native records
*_poplar_options                        -> `forward_options`, `backward_options`, `update_options`
batch_serialization_iterations          -> Pipelining.batch_serialization
replicated_optimizer_state_sharding     -> Replication.shard_optimizer_state
replicated_weight_sharding              -> Replication.shard_weights
offload_*                               -> Offload
"""

from collections.abc import Callable, Mapping
from typing import Any

from millrace.arguments import refuse_unknown
from millrace.errors import DTypeError, OptionError, UnsupportedError
from millrace.ipu.inert import inert
from millrace.options import truth, whole_number


def _any(name: str, value: Any) -> None:
    """Takes any value: what it becomes is checked where it is used."""


def _switch(name: str, value: Any) -> None:
    if value is not None:
        truth(name, value)


def _inert(advice: str) -> Callable[[str, Any], None]:
    def say(name: str, value: Any) -> None:
        if value is not None:
            inert(name, advice)

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
    if value is not None and not isinstance(value, list | tuple):
        raise DTypeError(f"{name} is a list of PipelineStageOptions. Received: {value!r}.")


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
    offloads = given.get("offload_weight_update_variables")
    if given.get("replicated_optimizer_state_sharding") and offloads is False:
        raise OptionError(
            "replicated_optimizer_state_sharding=True shares out state that is offloaded, and "
            "offload_weight_update_variables=False forbids it. Set that to None or True."
        )
