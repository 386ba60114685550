"""Options of a pipeline, by their IPU names -> those of `set_pipelining_options`.

pipeline_schedule, recomputation_mode     -> names; recomputation needs IPUConfig.allow_recompute
reduction_method                          -> gradient_accumulation_reduction_method
gradient_accumulation_dtype               -> the same, by name
replicated_optimizer_state_sharding=None  -> as offload_weight_update_variables
..._poplar_options                        -> ..._compiler_options
"""

import functools
from collections.abc import Mapping
from typing import Any

import keras

from millrace.errors import DTypeError, OptionError, UnsupportedError
from millrace.ipu.ops.schedules import NATIVE, PipelineSchedule, recomputation_of
from millrace.ipu.ops.stage_options import options_of_stages, options_of_update

_FORWARD, _BACKWARD = (f"{way}_propagation_stages" for way in ("forward", "backward"))
_SAME = (
    "offload_weight_update_variables",
    "offload_activations",
    "offload_gradient_accumulation_buffers",
    "offload_weights",
    "replicated_weight_sharding",
    "batch_serialization_iterations",
)


def native_options(
    given: Mapping[str, Any],
    schedule: PipelineSchedule,
    num_stages: int,
    trains: bool,
    recomputes: bool,
) -> dict[str, Any]:
    """Returns the native options.

    Args:
        given: by IPU name; what is missing is None.
        schedule: that was chosen.
        num_stages: of the pipeline.
        trains: whether options of training are read.
        recomputes: whether the configuration allows recomputation.

    Raises:
        ValueError: for optimizer state to be shared out that must not be offloaded.
        NotImplementedError: for weights to be shared out that must not be.
    """
    offloads, shards = (
        given.get(name) for name in (_SAME[0], "replicated_optimizer_state_sharding")
    )
    if shards and offloads is False:
        raise OptionError(
            "replicated_optimizer_state_sharding=True shares out state that is offloaded, and "
            "offload_weight_update_variables=False forbids it. Set that to None or True."
        )
    if given.get("replicated_weight_sharding") and given.get("offload_weights") is False:
        raise UnsupportedError(
            "replicated_weight_sharding=True with offload_weights=False was never implemented. "
            "Set offload_weights to None; millrace.Strategy takes both."
        )
    options = {name: given[name] for name in _SAME if given.get(name) is not None}
    options["pipeline_schedule"] = NATIVE[schedule]
    options["recomputation_mode"] = recomputation_of(
        given.get("recomputation_mode"), schedule, recomputes
    )
    options["replicated_optimizer_state_sharding"] = bool(offloads if shards is None else shards)
    options["gradient_accumulation_dtype"] = accumulator_dtype(
        given.get("gradient_accumulation_dtype")
    )
    ways = (_FORWARD, _BACKWARD) if trains else (_FORWARD,)
    for way in ways:
        name = f"{way}_poplar_options"
        options[f"{way}_compiler_options"] = options_of_stages(name, given.get(name), num_stages)
    if trains:
        update = options_of_update(
            "weight_update_poplar_options", given.get("weight_update_poplar_options")
        )
        options["weight_update_compiler_options"] = update
    return options


def accumulator_dtype(given: Any) -> Any:
    """Returns a dtype by its name, or a function that returns one; None for None.

    Raises:
        TypeError: if it is neither.
    """
    if given is None:
        return None
    try:
        return keras.backend.standardize_dtype(given)
    except (ValueError, TypeError):
        if callable(given):
            return _by_variable(given)
    raise DTypeError(
        "gradient_accumulation_dtype is a dtype, a function of a variable that returns one, or "
        f"None for each variable's own. Received: {given!r}."
    )


@functools.lru_cache(maxsize=32)  # one function for one: another would be another pipeline
def _by_variable(given: Any) -> Any:
    return lambda variable: accumulator_dtype(given(variable))
