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

from typing import Any

from millrace.ipu.ops.optimizer_function import (
    OptimizerFunctionOutput as OptimizerFunctionOutput,
)
from millrace.ipu.ops.pipeline_call import run_pipeline
from millrace.ipu.ops.pipeline_options import PipelineStageOptions as PipelineStageOptions
from millrace.ipu.ops.schedules import PipelineSchedule as PipelineSchedule
from millrace.ipu.ops.schedules import RecomputationMode as RecomputationMode
from millrace.layers.recomputation import recomputation_checkpoint as _mark


def pipeline(
    computational_stages: Any,
    gradient_accumulation_count: Any = None,
    gradient_accumulation_dtype: Any = None,
    repeat_count: int = 1,
    batch_serialization_iterations: int = 1,
    inputs: Any = None,
    infeed_queue: Any = None,
    outfeed_queue: Any = None,
    optimizer_function: Any = None,
    device_mapping: Any = None,
    pipeline_schedule: Any = None,
    recomputation_mode: Any = None,
    forward_propagation_stages_poplar_options: Any = None,
    backward_propagation_stages_poplar_options: Any = None,
    weight_update_poplar_options: Any = None,
    offload_weight_update_variables: bool | None = None,
    replicated_optimizer_state_sharding: bool | None = False,
    offload_activations: bool | None = None,
    offload_gradient_accumulation_buffers: bool | None = None,
    replicated_weight_sharding: bool | None = None,
    offload_weights: bool | None = None,
    continuous_weight_updates: bool = False,
    outfeed_loss: bool = False,
    accumulate_outfeed: bool = False,
    accumulate_outfeed_dtype: Any = None,
    outfeed_mask: Any = None,
    reduction_method: Any = "sum",
    gradient_accumulation_for_captured_grads: bool = True,
    name: str | None = None,
) -> None:
    """Runs a pipeline, here and now; every result goes through the outfeed queue.

    The arguments are those of the IPU, and all but those in the table above mean the same as in
    `millrace.pipeline` and `set_pipelining_options`.

    Raises:
        ValueError, TypeError, NotImplementedError: for options that do not fit together.
        RuntimeError: for a count that the schedule does not take.
    """
    run_pipeline(dict(locals()))


def recomputation_checkpoint(tensors: Any, name: str | None = None) -> Any:
    """Returns values unchanged, and lets backward keep them where it recomputes what is between.

    Args:
        tensors: an array, or a tree of them.
        name: is not needed.
    """
    del name
    return _mark(tensors)
