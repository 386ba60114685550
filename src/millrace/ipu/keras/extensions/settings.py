"""What the setters of an extended model have been told; its native options follow from all of it.

set_gradient_accumulation_options   -> Settings.accumulation
set_pipelining_options              -> Settings.pipelining, device_mapping, accumulate_outfeed
set_replication_options             -> Settings.metrics
set_infeed_queue_options            -> Settings.infeed
set_outfeed_queue_options           -> Settings.outfeed
set_asynchronous_callbacks          -> Settings.asynchronous
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from millrace.ipu.keras.extensions.accumulating import Accumulating
from millrace.ipu.ops.schedules import PipelineSchedule, schedule_of
from millrace.options import MetricReduction


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What one model was told."""

    accumulation: Accumulating = field(default_factory=Accumulating)
    pipelining: Accumulating = field(default_factory=Accumulating)
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
