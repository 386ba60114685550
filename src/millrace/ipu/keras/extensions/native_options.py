"""The native options of an extended model.

replicated_metric_reduction_method, None   -> "none": the last replica's
replicated_optimizer_state_sharding        -> Replication.shard_optimizer_state
replicated_weight_sharding                 -> Replication.shard_weights
offload_*                                  -> Offload
prefetch_depth                             -> Feed
"""

from dataclasses import replace

from millrace.ipu.keras.extensions.native_pipelining import pipelining, recomputation
from millrace.ipu.keras.extensions.queue_options import feed
from millrace.ipu.keras.extensions.settings import Settings
from millrace.ipu.ops.pipeline_options import accumulator_dtype
from millrace.options import Accumulation, Offload, Options


def native_options(settings: Settings, before: Options, recomputes: bool) -> Options:
    """Returns the native options.

    Args:
        settings: of the model.
        before: its options so far, of which those stay that no setter is for.
        recomputes: whether the configuration allows recomputation.

    Raises:
        DTypeError: for an enum's value, a dtype or an object of another type.
        UnsupportedError: for a recomputation mode that does not go with the schedule.
    """
    own, more = settings.accumulation, settings.pipelining.more
    offloads = settings.of_either("offload_weight_update_variables")
    shards = settings.of_either("replicated_optimizer_state_sharding")
    return replace(
        before,
        accumulation=Accumulation(
            steps=own.steps or 1,
            reduction=own.reduction,
            dtype=accumulator_dtype(own.more.get("dtype")),
        ),
        pipelining=pipelining(settings, before.pipelining),
        replication=replace(
            before.replication,
            metrics=settings.metrics,
            shard_optimizer_state=bool(shards),
            shard_weights=bool(more.get("replicated_weight_sharding")),
        ),
        recomputation=recomputation(settings, recomputes),
        offload=Offload(
            optimizer_state=offloads,
            activations=more.get("offload_activations"),
            accumulators=more.get("offload_gradient_accumulation_buffers"),
            weights=more.get("offload_weights"),
        ),
        feed=feed(settings),
        asynchronous_callbacks=settings.asynchronous,
    )
