"""Pipelines of functions.

pipeline(...)                        -> millrace.pipeline
    gradient_accumulation_count      -> micro_batches, a multiple of those that run at once
    repeat_count                     -> updates
    infeed_queue, outfeed_queue      -> infeed, outfeed
    all other options                -> pipeline_options.py
    strategy                         that of the current scope or `run`, else the newest
    replicas                         need a CrossReplicaOptimizer, since they share their weights
PipelineSchedule, RecomputationMode  -> schedules.py
PipelineStageOptions                 -> pipeline_options.py
OptimizerFunctionOutput              -> optimizer_function.py
recomputation_checkpoint             -> millrace.layers.recomputation_checkpoint
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias, TypeVar

from millrace import InfeedQueue, OutfeedQueue
from millrace import pipeline as native_pipeline
from millrace.errors import OptionError
from millrace.extend import make_chain, require_host, strategy_in_scope, whole_number
from millrace.layers import recomputation_checkpoint as _mark
from millrace_ipu.ipu.accumulator_dtype import AnyDtype, DTypeChoice
from millrace_ipu.ipu.config import current_system
from millrace_ipu.ipu.gradient_accumulation import (
    GradientAccumulationReductionMethod,
    ReductionMethod,
)
from millrace_ipu.ipu.gradient_accumulation import reduction_method as method_of
from millrace_ipu.ipu.ipu_strategy import current_strategy
from millrace_ipu.ipu.ops.optimizer_function import (
    OptimizerFunctionOutput as OptimizerFunctionOutput,
)
from millrace_ipu.ipu.ops.optimizer_function import native_function
from millrace_ipu.ipu.ops.pipeline_options import PipelineStageOptions as PipelineStageOptions
from millrace_ipu.ipu.ops.pipeline_options import native_options, refuse_continuous_updates
from millrace_ipu.ipu.ops.schedules import PipelineSchedule as PipelineSchedule
from millrace_ipu.ipu.ops.schedules import RecomputationMode as RecomputationMode
from millrace_ipu.ipu.ops.schedules import check_length, schedule_of
from millrace_ipu.pytrees import Array, ArrayTree

StageFunctions: TypeAlias = Sequence[Callable[..., object] | Sequence[Callable[..., object]]]
_Activations = TypeVar("_Activations", bound=ArrayTree)

# Pipelines with replicas have a CrossReplicaOptimizer, which takes the mean over them.
_OVER_REPLICAS = {
    GradientAccumulationReductionMethod.SUM: "sum_then_mean",
    GradientAccumulationReductionMethod.MEAN: "mean",
    GradientAccumulationReductionMethod.RUNNING_MEAN: "running_mean",
}


def pipeline(
    computational_stages: StageFunctions,
    gradient_accumulation_count: int | Array | None = None,
    gradient_accumulation_dtype: AnyDtype = None,
    repeat_count: int = 1,
    batch_serialization_iterations: int = 1,
    inputs: ArrayTree = None,
    infeed_queue: InfeedQueue | None = None,
    outfeed_queue: OutfeedQueue | None = None,
    optimizer_function: Callable[..., object] | None = None,
    device_mapping: Sequence[int | Sequence[int]] | None = None,
    pipeline_schedule: PipelineSchedule | None = None,
    recomputation_mode: RecomputationMode | None = None,
    forward_propagation_stages_poplar_options: Sequence[PipelineStageOptions] | None = None,
    backward_propagation_stages_poplar_options: Sequence[PipelineStageOptions] | None = None,
    weight_update_poplar_options: PipelineStageOptions | None = None,
    offload_weight_update_variables: bool | None = None,
    replicated_optimizer_state_sharding: bool | None = False,
    offload_activations: bool | None = None,
    offload_gradient_accumulation_buffers: bool | None = None,
    replicated_weight_sharding: bool | None = None,
    offload_weights: bool | None = None,
    continuous_weight_updates: bool = False,
    outfeed_loss: bool = False,
    accumulate_outfeed: bool = False,
    accumulate_outfeed_dtype: DTypeChoice | None = None,
    outfeed_mask: Sequence[bool] | None = None,
    reduction_method: ReductionMethod = "sum",
    gradient_accumulation_for_captured_grads: bool = True,
    name: str | None = None,
) -> None:
    """Runs a pipeline at once. All results go through the outfeed queue.

    The arguments are those of the IPU. Apart from the names in the table above, they have the same
    meaning as in `millrace.pipeline` and `set_pipelining_options`.

    Raises:
        ValueError, TypeError, NotImplementedError: for options that do not fit together.
        RuntimeError: for a number of micro-batches that does not fit the schedule.
    """
    arguments = dict(locals())
    if isinstance(outfeed_queue, OutfeedQueue):
        outfeed_queue.mark_enqueued()  # for sessions, whose programs are built before they run
    require_host()
    refuse_continuous_updates(continuous_weight_updates)
    count = _count(gradient_accumulation_count)
    stages, function = computational_stages, optimizer_function
    chain = make_chain(stages, device_mapping, batch_serialization=batch_serialization_iterations)
    schedule = schedule_of(pipeline_schedule, batch_serialization_iterations)
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
    reduction = _OVER_REPLICAS[method_of(reduction_method)]
    native_pipeline(
        stages,
        count,
        updates=whole_number("repeat_count", repeat_count, 0),
        inputs=inputs,
        infeed=infeed_queue,
        outfeed=outfeed_queue,
        optimizer_function=None
        if function is None
        else native_function(function, replicas, gradient_accumulation_dtype is None),
        device_mapping=device_mapping,
        outfeed_loss=outfeed_loss,
        outfeed_mask=outfeed_mask,
        accumulate_outfeed=accumulate_outfeed,
        accumulate_outfeed_dtype=accumulate_outfeed_dtype,
        strategy=strategy,
        name=name or "pipeline",
        gradient_accumulation_reduction_method=reduction,
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


def recomputation_checkpoint(tensors: _Activations, name: str | None = None) -> _Activations:
    """Returns values unchanged, and marks them as a recomputation boundary.

    Where backward recomputes, it keeps these values and recomputes those between boundaries.

    Args:
        tensors: an array, or a tree of them.
        name: ignored.
    """
    return _mark(tensors)
