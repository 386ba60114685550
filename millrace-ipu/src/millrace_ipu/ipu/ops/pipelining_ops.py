"""Pipelines of functions.

pipeline(...)                        -> millrace.pipeline
    gradient_accumulation_count      -> micro_batches
    repeat_count                     -> updates
    infeed_queue, outfeed_queue      -> infeed, outfeed
    all other options                -> pipeline_options.py
PipelineSchedule, RecomputationMode  -> schedules.py
PipelineStageOptions                 -> pipeline_options.py
OptimizerFunctionOutput              -> optimizer_function.py
recomputation_checkpoint             -> millrace.layers.recomputation_checkpoint
"""

from collections.abc import Callable, Sequence
from typing import TypeVar, cast

from millrace import InfeedQueue, OutfeedQueue
from millrace.layers import recomputation_checkpoint as _mark
from millrace_ipu.ipu.accumulator_dtype import AnyDtype, DTypeChoice
from millrace_ipu.ipu.gradient_accumulation import ReductionMethod
from millrace_ipu.ipu.ops.optimizer_function import (
    OptimizerFunctionOutput as OptimizerFunctionOutput,
)
from millrace_ipu.ipu.ops.pipeline_call import PipelineArguments, StageFunctions, run_pipeline
from millrace_ipu.ipu.ops.pipeline_options import PipelineStageOptions as PipelineStageOptions
from millrace_ipu.ipu.ops.schedules import PipelineSchedule as PipelineSchedule
from millrace_ipu.ipu.ops.schedules import RecomputationMode as RecomputationMode
from millrace_ipu.pytrees import Array, ArrayTree

_Activations = TypeVar("_Activations", bound=ArrayTree)


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
    run_pipeline(cast(PipelineArguments, dict(locals())))


def recomputation_checkpoint(tensors: _Activations, name: str | None = None) -> _Activations:
    """Returns values unchanged, and marks them as a recomputation boundary.

    Where backward recomputes, it keeps these values and recomputes those between boundaries.

    Args:
        tensors: an array, or a tree of them.
        name: ignored.
    """
    del name
    return _mark(tensors)
