"""What the setters of an extended model have been told, and the native options of it.

gradient_accumulation_steps_per_replica         -> Accumulation.steps, Pipelining.steps
gradient_accumulation_reduction_method, None    -> "sum", over micro-batches and replicas
experimental_normalize_gradients=True           -> "mean"
replicated_metric_reduction_method, None        -> "none": the last replica's
IPUConfig.allow_recompute                       -> Recomputation.mode
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from millrace.ipu.gradient_accumulation import GradientAccumulationReductionMethod as Method
from millrace.ipu.ops.pipeline_options import accumulator_dtype
from millrace.ipu.ops.schedules import NATIVE, PipelineSchedule, recomputation_of, schedule_of
from millrace.ipu.ops.stage_options import options_of_update
from millrace.options import (
    Accumulation,
    Feed,
    MetricReduction,
    Offload,
    Options,
    Pipelining,
    Recomputation,
    RecomputationMode,
    Reduction,
)

_REDUCTIONS = {
    Method.SUM: Reduction.SUM,
    Method.MEAN: Reduction.MEAN_THEN_SUM,
    Method.RUNNING_MEAN: Reduction.RUNNING_MEAN_THEN_SUM,
}
_FEED = ("prefetch_depth", "max_block_bytes", "max_resident_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Accumulating:
    """How gradients are accumulated, and the free arguments of the setter that said so."""

    steps: int | None = None
    method: Method = Method.SUM
    normalizes: bool = False  # over micro-batches and replicas, as one big batch
    more: Mapping[str, Any] = field(default_factory=dict)

    @property
    def reduction(self) -> Reduction:
        """By its native name."""
        return Reduction.MEAN if self.normalizes else _REDUCTIONS[self.method]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What one model was told."""

    accumulation: Accumulating = Accumulating()
    pipelining: Accumulating = Accumulating()
    device_mapping: tuple[int, ...] | None = None
    accumulate_outfeed: bool = False
    asynchronous: bool = False
    metrics: MetricReduction = MetricReduction.NONE
    infeed: Mapping[str, Any] = field(default_factory=dict)
    outfeed: Mapping[str, Any] = field(default_factory=dict)

    @property
    def serialization(self) -> int:
        """Micro-batches that a stage runs before the next one starts."""
        return self.pipelining.more.get("batch_serialization_iterations") or 1

    @property
    def schedule(self) -> PipelineSchedule:
        """Of the pipeline."""
        return schedule_of(self.pipelining.more.get("pipeline_schedule"), self.serialization)

    def of_either(self, name: str) -> Any:
        """Returns a free argument that both setters take; None if neither was given it."""
        own = self.pipelining.more.get(name)
        return self.accumulation.more.get(name) if own is None else own


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
        pipelining=_pipelining(settings, before.pipelining),
        replication=replace(
            before.replication,
            metrics=settings.metrics,
            shard_optimizer_state=bool(shards),
            shard_weights=bool(more.get("replicated_weight_sharding")),
        ),
        recomputation=_recomputation(settings, recomputes),
        offload=Offload(
            optimizer_state=offloads,
            activations=more.get("offload_activations"),
            accumulators=more.get("offload_gradient_accumulation_buffers"),
            weights=more.get("offload_weights"),
        ),
        # The values are checked when the queue is built, at fit.
        feed=Feed(**{k: v for k, v in settings.infeed.items() if k in _FEED and is_depth(k, v)}),
        asynchronous_callbacks=settings.asynchronous,
    )


def is_depth(name: str, value: Any) -> bool:
    """Whether a value is one that a queue option can have."""
    least, most = (1, 255) if name == "prefetch_depth" else (0, None)
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return is_number and value >= least and (most is None or value <= most)


def _pipelining(settings: Settings, before: Pipelining) -> Pipelining:
    own = settings.pipelining

    def stages(way: str) -> Any:
        name = f"{way}_propagation_stages_poplar_options"
        given = own.more.get(name)
        return given and tuple(
            options_of_update(f"{name}[{k}]", each) or {} for k, each in enumerate(given)
        )

    return replace(
        before,
        steps=own.steps,
        reduction=own.reduction,
        dtype=accumulator_dtype(own.more.get("gradient_accumulation_dtype")),
        schedule=NATIVE[settings.schedule],
        device_mapping=settings.device_mapping,
        forward_options=stages("forward"),
        backward_options=stages("backward"),
        update_options=options_of_update(
            "weight_update_poplar_options", own.more.get("weight_update_poplar_options")
        ),
        batch_serialization=settings.serialization,
    )


def _recomputation(settings: Settings, recomputes: bool) -> Recomputation:
    mode = settings.pipelining.more.get("recomputation_mode")
    chosen = recomputation_of(mode, settings.schedule, recomputes)
    if mode is None and recomputes:
        # The same for a pipeline, and checkpoints act in a model in one piece.
        return Recomputation(mode=RecomputationMode.AUTO)
    return Recomputation(mode=RecomputationMode(chosen))
