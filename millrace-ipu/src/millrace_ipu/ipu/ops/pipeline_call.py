"""Calls of `pipelining_ops.pipeline`, checked and passed on to `millrace.pipeline`.

strategy                 that of the current scope or `run`, else the newest
number of micro-batches  a multiple of the number that runs at once: schedules.py
replicas                 need a CrossReplicaOptimizer, since they share their weights
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias, TypedDict

from millrace import InfeedQueue, OutfeedQueue, pipeline
from millrace.errors import OptionError
from millrace.extend import make_chain, require_host, strategy_in_scope, whole_number
from millrace_ipu.ipu.accumulator_dtype import AnyDtype, DTypeChoice
from millrace_ipu.ipu.config import current_system
from millrace_ipu.ipu.gradient_accumulation import (
    GradientAccumulationReductionMethod,
    ReductionMethod,
    reduction_method,
)
from millrace_ipu.ipu.ipu_strategy import current_strategy
from millrace_ipu.ipu.ops.optimizer_function import native_function
from millrace_ipu.ipu.ops.pipeline_options import (
    PipelineStageOptions,
    native_options,
    refuse_continuous_updates,
)
from millrace_ipu.ipu.ops.schedules import (
    PipelineSchedule,
    RecomputationMode,
    check_length,
    schedule_of,
)
from millrace_ipu.pytrees import Array, ArrayTree

StageFunctions: TypeAlias = Sequence[Callable[..., object] | Sequence[Callable[..., object]]]


class PipelineArguments(TypedDict):
    """The arguments of `pipelining_ops.pipeline`."""

    computational_stages: StageFunctions
    gradient_accumulation_count: int | Array | None
    gradient_accumulation_dtype: AnyDtype
    repeat_count: int
    batch_serialization_iterations: int
    inputs: ArrayTree
    infeed_queue: InfeedQueue | None
    outfeed_queue: OutfeedQueue | None
    optimizer_function: Callable[..., object] | None
    device_mapping: Sequence[int | Sequence[int]] | None
    pipeline_schedule: PipelineSchedule | None
    recomputation_mode: RecomputationMode | None
    forward_propagation_stages_poplar_options: Sequence[PipelineStageOptions] | None
    backward_propagation_stages_poplar_options: Sequence[PipelineStageOptions] | None
    weight_update_poplar_options: PipelineStageOptions | None
    offload_weight_update_variables: bool | None
    replicated_optimizer_state_sharding: bool | None
    offload_activations: bool | None
    offload_gradient_accumulation_buffers: bool | None
    replicated_weight_sharding: bool | None
    offload_weights: bool | None
    continuous_weight_updates: bool
    outfeed_loss: bool
    accumulate_outfeed: bool
    accumulate_outfeed_dtype: DTypeChoice | None
    outfeed_mask: Sequence[bool] | None
    reduction_method: ReductionMethod
    gradient_accumulation_for_captured_grads: bool
    name: str | None


# Pipelines with replicas have a CrossReplicaOptimizer, which takes the mean over them.
_OVER_REPLICAS = {
    GradientAccumulationReductionMethod.SUM: "sum_then_mean",
    GradientAccumulationReductionMethod.MEAN: "mean",
    GradientAccumulationReductionMethod.RUNNING_MEAN: "running_mean",
}


def run_pipeline(arguments: PipelineArguments) -> None:
    """Runs a pipeline with the arguments of `pipelining_ops.pipeline`."""
    outfeed = arguments["outfeed_queue"]
    if isinstance(outfeed, OutfeedQueue):
        outfeed.mark_enqueued()  # for sessions, whose programs are built before they run
    require_host()
    refuse_continuous_updates(arguments["continuous_weight_updates"])
    count = _count(arguments["gradient_accumulation_count"])
    serialization = arguments["batch_serialization_iterations"]
    stages, function = arguments["computational_stages"], arguments["optimizer_function"]
    chain = make_chain(stages, arguments["device_mapping"], batch_serialization=serialization)
    schedule = schedule_of(arguments["pipeline_schedule"], serialization)
    first = dict(zip(reversed(chain.levels), reversed(chain.mapping), strict=True))
    check_length(schedule, [first[level] for level in sorted(first)], count, function is not None)
    strategy = strategy_in_scope() or current_strategy()
    replicas = len(strategy.devices) // (max(chain.mapping) + 1)
    options = native_options(
        arguments,
        schedule,
        len(chain.stages),
        function is not None,
        current_system().allow_recompute,
    )
    reduction = reduction_method(arguments["reduction_method"])
    pipeline(
        stages,
        count,
        updates=whole_number("repeat_count", arguments["repeat_count"], 0),
        inputs=arguments["inputs"],
        infeed=arguments["infeed_queue"],
        outfeed=outfeed,
        optimizer_function=None if function is None else native_function(function, replicas),
        casts_gradients=arguments["gradient_accumulation_dtype"] is None,
        device_mapping=arguments["device_mapping"],
        outfeed_loss=arguments["outfeed_loss"],
        outfeed_mask=arguments["outfeed_mask"],
        accumulate_outfeed=arguments["accumulate_outfeed"],
        accumulate_outfeed_dtype=arguments["accumulate_outfeed_dtype"],
        strategy=strategy,
        name=arguments["name"] or "pipeline",
        gradient_accumulation_reduction_method=_OVER_REPLICAS[reduction],
        **options,
    )


def _count(value: int | Array | None) -> int:
    name = "gradient_accumulation_count"
    if value is None:
        raise OptionError(
            f"pipeline() needs {name}, the number of micro-batches in one update. Set it."
        )
    item = getattr(value, "item", None)  # of arrays, and of NumPy's numbers
    count = whole_number(name, value if item is None else item(), 1)
    if count >= 2**31:
        raise OptionError(f"{name} must be below 2**31. Received: {count}.")
    return count
