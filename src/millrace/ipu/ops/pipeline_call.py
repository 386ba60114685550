"""A call of `pipelining_ops.pipeline`, checked and handed to `millrace.pipeline`.

strategy                 the one whose scope or `run` this is, else the newest
number of micro-batches  a multiple of those that run at once: schedules.py
replicas                 the optimizer must be a CrossReplicaOptimizer: their weights are one
"""

from typing import Any

from millrace.errors import OptionError, UnsupportedError
from millrace.function_pipelines.chain import make_chain
from millrace.function_pipelines.pipeline import pipeline
from millrace.ipu.config import current_system
from millrace.ipu.gradient_accumulation import (
    GradientAccumulationReductionMethod,
    reduction_method,
)
from millrace.ipu.ipu_strategy import current_strategy
from millrace.ipu.ops.optimizer_function import native_function
from millrace.ipu.ops.pipeline_options import native_options
from millrace.ipu.ops.schedules import check_length, schedule_of
from millrace.loops.host_driven import require_host
from millrace.options import whole_number
from millrace.strategy.strategy import strategy_in_scope
from millrace.taps.outfeed import OutfeedQueue

# A CrossReplicaOptimizer, without which there are no replicas, takes the mean over them.
_OVER_REPLICAS = {
    GradientAccumulationReductionMethod.SUM: "sum_then_mean",
    GradientAccumulationReductionMethod.MEAN: "mean",
    GradientAccumulationReductionMethod.RUNNING_MEAN: "running_mean",
}


def run_pipeline(given: dict[str, Any]) -> None:
    """Runs a pipeline by the arguments of `pipelining_ops.pipeline`."""
    if isinstance(given["outfeed_queue"], OutfeedQueue):
        given["outfeed_queue"].mark_enqueued()  # for a session, which builds before it runs
    require_host()
    if given["continuous_weight_updates"]:
        raise UnsupportedError(
            "continuous_weight_updates=True was never implemented. Leave it out: weights stand "
            "still within an update."
        )
    count = _count(given["gradient_accumulation_count"])
    serialization = given["batch_serialization_iterations"]
    stages, function = given["computational_stages"], given["optimizer_function"]
    chain = make_chain(stages, given["device_mapping"], on_one_device=serialization > 1)
    schedule = schedule_of(given["pipeline_schedule"], serialization)
    first = dict(zip(reversed(chain.levels), reversed(chain.mapping), strict=True))
    check_length(schedule, [first[level] for level in sorted(first)], count, function is not None)
    strategy = strategy_in_scope() or current_strategy()
    replicas = len(strategy.devices) // (max(chain.mapping) + 1)
    options = native_options(
        given, schedule, len(chain.stages), function is not None, current_system().allow_recompute
    )
    reduction = reduction_method(given["reduction_method"])
    pipeline(
        stages,
        count,
        updates=whole_number("repeat_count", given["repeat_count"], 0),
        inputs=given["inputs"],
        infeed=given["infeed_queue"],
        outfeed=given["outfeed_queue"],
        optimizer_function=None if function is None else native_function(function, replicas),
        casts_gradients=given["gradient_accumulation_dtype"] is None,
        device_mapping=given["device_mapping"],
        outfeed_loss=given["outfeed_loss"],
        outfeed_mask=given["outfeed_mask"],
        accumulate_outfeed=given["accumulate_outfeed"],
        accumulate_outfeed_dtype=given["accumulate_outfeed_dtype"],
        strategy=strategy,
        name=given["name"] or "pipeline",
        gradient_accumulation_reduction_method=_OVER_REPLICAS[reduction],
        **options,
    )


def _count(given: Any) -> int:
    name = "gradient_accumulation_count"
    if given is None:
        raise OptionError(f"pipeline() needs {name}: the micro-batches of one update. Set it.")
    count = whole_number(name, given.item() if hasattr(given, "item") else given, 1)
    if count >= 2**31:
        raise OptionError(f"{name} must be below 2**31. Received: {count}.")
    return count
