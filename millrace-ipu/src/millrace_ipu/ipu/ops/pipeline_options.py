"""The options of `pipelining_ops.pipeline`, converted to those of `set_pipelining_options`.

pipeline_schedule, recomputation_mode     by name; recomputation needs IPUConfig.allow_recompute
gradient_accumulation_dtype               the same, by name
replicated_optimizer_state_sharding=None  as offload_weight_update_variables
..._poplar_options                        ..._compiler_options: one PipelineStageOptions for each
    options of XLA, by their names        passed to the compiler of the stage
    options of Poplar                     without effect, with one warning
"""

from collections.abc import Mapping, Sequence
from typing import Any

from millrace.errors import DTypeError, OptionError, UnsupportedError
from millrace_ipu.ipu.accumulator_dtype import accumulator_dtype
from millrace_ipu.ipu.ops.schedules import NATIVE, PipelineSchedule, recomputation_of
from millrace_ipu.tensorflow.no_operation import warn_no_effect


class PipelineStageOptions:
    """Options for the convolutions, matrix products and slices of one stage."""

    def __init__(
        self,
        convolution_options: dict[str, object] | None = None,
        matmul_options: dict[str, object] | None = None,
        slice_options: dict[str, object] | None = None,
    ):
        given = {name: value for name, value in locals().items() if name.endswith("_options")}
        for name, value in given.items():
            if value is not None and not isinstance(value, dict):
                raise DTypeError(
                    f"{name} of PipelineStageOptions is a dict. Received: {value!r} of type "
                    f"{type(value).__name__}. Set {{}} for none."
                )
            setattr(self, name, value or {})

    def compiler_options(self) -> dict[str, object]:
        """Returns the options of XLA among these, and warns about the others."""
        options = {name: v for each in vars(self).values() for name, v in each.items()}
        for name in options:
            if not name.startswith("xla_"):
                warn_no_effect(
                    f"{name!r} in PipelineStageOptions",
                    "It is an option of Poplar. Options of XLA, such as "
                    "'xla_cpu_enable_fast_math', are passed to the compiler of that stage.",
                )
        return {name: value for name, value in options.items() if name.startswith("xla_")}


def options_of_stages(name: str, value: object) -> list[dict[str, object]] | None:
    """Returns the compiler options of each stage; None for None.

    Raises:
        DTypeError: unless it is a list of `PipelineStageOptions`.
    """
    if value is None:
        return None
    options = list_of_options(name, value)
    return [options_of_update(f"{name}[{k}]", each) or {} for k, each in enumerate(options)]


def options_of_update(name: str, value: object) -> dict[str, object] | None:
    """Returns the compiler options of one `PipelineStageOptions`; None for None.

    Raises:
        DTypeError: for anything else.
    """
    if value is None:
        return None
    if not isinstance(value, PipelineStageOptions):
        raise DTypeError(
            f"{name} is a PipelineStageOptions. Received: {value!r} of type {type(value).__name__}."
        )
    return value.compiler_options()


FORWARD, BACKWARD = (f"{way}_propagation_stages" for way in ("forward", "backward"))
_SAME_NAMES = (
    "offload_weight_update_variables",
    "offload_activations",
    "offload_gradient_accumulation_buffers",
    "offload_weights",
    "replicated_weight_sharding",
    "batch_serialization_iterations",
)


def native_options(
    arguments: Mapping[str, object],
    schedule: PipelineSchedule,
    num_stages: int,
    trains: bool,
    recomputes: bool,
) -> dict[str, Any]:
    """Returns the options of `set_pipelining_options`.

    Args:
        arguments: of `pipelining_ops.pipeline`; a missing one is None.
        schedule: of the pipeline.
        num_stages: of the pipeline.
        trains: whether to read options of training.
        recomputes: whether the configuration allows recomputation.

    Raises:
        DTypeError: for a value of another type.
        OptionError: for a list of another length than the stages, or for optimizer state that is
            to be sharded but not offloaded.
        UnsupportedError: for weights that are to be sharded but not offloaded.
    """
    offloads, shards = (
        arguments.get(name)
        for name in ("offload_weight_update_variables", "replicated_optimizer_state_sharding")
    )
    check_sharded_state(shards, offloads)
    if arguments.get("replicated_weight_sharding") and arguments.get("offload_weights") is False:
        raise UnsupportedError(
            "replicated_weight_sharding=True with offload_weights=False was never implemented. "
            "Set offload_weights=None, or run a model under millrace.Strategy, which has both."
        )
    options = {name: arguments[name] for name in _SAME_NAMES if arguments.get(name) is not None}
    options["pipeline_schedule"] = NATIVE[schedule]
    options["recomputation_mode"] = recomputation_of(
        arguments.get("recomputation_mode"), schedule, recomputes
    )
    options["replicated_optimizer_state_sharding"] = bool(offloads if shards is None else shards)
    options["gradient_accumulation_dtype"] = accumulator_dtype(
        arguments.get("gradient_accumulation_dtype")
    )
    for way in (FORWARD, BACKWARD) if trains else (FORWARD,):
        name = f"{way}_poplar_options"
        check_number_of_options(name, arguments.get(name), num_stages)
        options[f"{way}_compiler_options"] = options_of_stages(name, arguments.get(name))
    if trains:
        update = options_of_update(
            "weight_update_poplar_options", arguments.get("weight_update_poplar_options")
        )
        options["weight_update_compiler_options"] = update
    return options


def check_sharded_state(shards: object, offloads: object) -> None:
    """Refuses to shard optimizer state that must not be offloaded.

    Args:
        shards: `replicated_optimizer_state_sharding`.
        offloads: `offload_weight_update_variables`.

    Raises:
        OptionError: naming both.
    """
    if shards and offloads is False:
        raise OptionError(
            "replicated_optimizer_state_sharding=True shards state that is offloaded, and "
            "offload_weight_update_variables=False forbids offloading it. Set "
            "offload_weight_update_variables to None or True."
        )


def refuse_continuous_updates(value: object) -> None:
    """Refuses the option `continuous_weight_updates`.

    Raises:
        UnsupportedError: if it is on.
    """
    if value:
        raise UnsupportedError(
            "continuous_weight_updates=True was never implemented: weights do not change within "
            "an update. Leave it out."
        )


def list_of_options(name: str, value: object) -> Sequence[object]:
    """Returns a list, whose elements are checked where they are used.

    Raises:
        DTypeError: for anything else.
    """
    if not isinstance(value, list | tuple):
        raise DTypeError(f"{name} is a list of PipelineStageOptions. Received: {value!r}.")
    return value


def check_number_of_options(name: str, value: object, num_stages: int) -> None:
    """Checks that a list, if there is one, has an element for each stage.

    Raises:
        DTypeError: unless it is a list or None.
        OptionError: for another length.
    """
    if value is not None and len(list_of_options(name, value)) != num_stages:
        raise OptionError(
            f"{name} has {len(list_of_options(name, value))} entries, and the pipeline has "
            f"{num_stages} stages. Give one PipelineStageOptions for each stage."
        )
