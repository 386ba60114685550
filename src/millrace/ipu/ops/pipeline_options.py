"""The options of `pipelining_ops.pipeline`, as `set_pipelining_options` takes them.

pipeline_schedule, recomputation_mode     by name; recomputation needs IPUConfig.allow_recompute
gradient_accumulation_dtype               the same, by name
replicated_optimizer_state_sharding=None  as offload_weight_update_variables
..._poplar_options                        ..._compiler_options: a PipelineStageOptions each
    options of XLA by their names         given to the compiler of the stage
    options of Poplar                     none: a warning says so once
"""

import functools
from collections.abc import Mapping
from typing import Any

import keras

from millrace.errors import DTypeError, OptionError, UnsupportedError
from millrace.ipu.no_effect import warn_no_effect
from millrace.ipu.ops.schedules import NATIVE, PipelineSchedule, recomputation_of


class PipelineStageOptions:
    """Options for the convolutions, matrix products and slices of one stage."""

    def __init__(
        self,
        convolution_options: dict[str, Any] | None = None,
        matmul_options: dict[str, Any] | None = None,
        slice_options: dict[str, Any] | None = None,
    ):
        given = {
            "convolution_options": convolution_options,
            "matmul_options": matmul_options,
            "slice_options": slice_options,
        }
        for name, value in given.items():
            if value is not None and not isinstance(value, dict):
                raise DTypeError(
                    f"{name} of PipelineStageOptions is a dict. Received: {value!r} of type "
                    f"{type(value).__name__}. Set {{}} for none."
                )
        self.convolution_options = convolution_options or {}
        self.matmul_options = matmul_options or {}
        self.slice_options = slice_options or {}

    def compiler_options(self) -> dict[str, Any]:
        """Returns those that XLA knows."""
        given = {**self.convolution_options, **self.matmul_options, **self.slice_options}
        for name in given:
            if not name.startswith("xla_"):
                warn_no_effect(
                    f"{name!r} in PipelineStageOptions",
                    "It is an option of Poplar. Options of XLA, such as "
                    "'xla_cpu_enable_fast_math', are given to the compiler of that stage.",
                )
        return {name: value for name, value in given.items() if name.startswith("xla_")}


def options_of_stages(name: str, given: Any, num_stages: int) -> list[dict[str, Any]] | None:
    """Returns the compiler options of each stage.

    Raises:
        DTypeError: if it is no list, or not of `PipelineStageOptions`.
        OptionError: for another number than there are stages.
    """
    if given is None:
        return None
    check_list_of_options(name, given)
    if len(given) != num_stages:
        raise OptionError(
            f"{name} has {len(given)} entries, and the pipeline has {num_stages} stages. Give "
            "one PipelineStageOptions for each."
        )
    return [options_of_update(f"{name}[{k}]", each) or {} for k, each in enumerate(given)]


def options_of_update(name: str, given: Any) -> dict[str, Any] | None:
    """Returns the compiler options of one `PipelineStageOptions`, None for None.

    Raises:
        DTypeError: if it is none.
    """
    if given is None:
        return None
    if not isinstance(given, PipelineStageOptions):
        raise DTypeError(
            f"{name} is a PipelineStageOptions. Received: {given!r} of type {type(given).__name__}."
        )
    return given.compiler_options()


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
        OptionError: for optimizer state to be shared out that must not be offloaded.
        UnsupportedError: for weights to be shared out that must not be.
    """
    offloads, shards = (
        given.get(name) for name in (_SAME[0], "replicated_optimizer_state_sharding")
    )
    check_sharded_state(shards, offloads)
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


def check_sharded_state(shards: Any, offloads: Any) -> None:
    """Refuses to shard optimizer state that must not be offloaded.

    Args:
        shards: `replicated_optimizer_state_sharding`.
        offloads: `offload_weight_update_variables`.

    Raises:
        OptionError: naming both.
    """
    if shards and offloads is False:
        raise OptionError(
            "replicated_optimizer_state_sharding=True shares out state that is offloaded, and "
            "offload_weight_update_variables=False forbids it. Set that to None or True."
        )


def check_list_of_options(name: str, given: Any) -> None:
    """Refuses what is no list; what is in it is checked where it is used.

    Raises:
        DTypeError: naming the option.
    """
    if not isinstance(given, list | tuple):
        raise DTypeError(f"{name} is a list of PipelineStageOptions. Received: {given!r}.")


def accumulator_dtype(given: Any) -> Any:
    """Returns a dtype by its name, or a function that returns one; None for None.

    Raises:
        DTypeError: if it is neither.
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
