"""The settings of an extended model, as its setters were told.

set_gradient_accumulation_options   -> Settings.accumulation
set_pipelining_options              -> Settings.pipelining, device_mapping, accumulate_outfeed
set_replication_options             -> Settings.metrics
set_infeed_queue_options            -> Settings.infeed
set_outfeed_queue_options           -> Settings.outfeed
set_asynchronous_callbacks          -> Settings.asynchronous

gradient_accumulation_reduction_method   SUM            "sum", over micro-batches and replicas
                                         MEAN           "mean_then_sum"
                                         RUNNING_MEAN   "running_mean_then_sum"
experimental_normalize_gradients=True                   "mean"
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from millrace.errors import OptionError
from millrace.fit.controller import Controller
from millrace.fit.setup import Rules
from millrace.ipu.gradient_accumulation import GradientAccumulationReductionMethod as Method
from millrace.ipu.gradient_accumulation import reduction_method
from millrace.ipu.keras.extensions.arguments import STEPS
from millrace.ipu.ops.schedules import PipelineSchedule, schedule_of
from millrace.options import MetricReduction, Reduction, truth, whole_number

_REDUCTIONS = {
    Method.SUM: Reduction.SUM,
    Method.MEAN: Reduction.MEAN_THEN_SUM,
    Method.RUNNING_MEAN: Reduction.RUNNING_MEAN_THEN_SUM,
}


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
    """The settings of one model."""

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


@dataclass(frozen=True, slots=True)
class ExtendedRules(Rules):
    """Rules that know what the setters of their model were told."""

    settings: Settings = Settings()
    epochs: int = 1  # of the running loop


def rules_of(controller: Controller) -> ExtendedRules:
    """Returns the rules of an extended model."""
    rules = controller.setup.rules
    assert isinstance(rules, ExtendedRules)  # noqa: S101 - `extend` has put them
    return rules


def settings_of(controller: Controller) -> Settings:
    """Returns what the setters of an extended model were told."""
    return rules_of(controller).settings


def accumulating(
    before: Accumulating, steps: Any, normalizes: Any, method: Any, more: dict[str, Any]
) -> Accumulating:
    """Returns what a setter was told, on top of what was set before.

    Args:
        before: what was set; an argument that is None keeps it.
        steps: `gradient_accumulation_steps_per_replica`.
        normalizes: `experimental_normalize_gradients`.
        method: `gradient_accumulation_reduction_method`.
        more: the free arguments, which replace those of before.

    Raises:
        OptionError: for a number below 1, an unknown method, or two that exclude each other.
    """
    if method is None and not isinstance(normalizes, bool | None):
        normalizes, method = None, normalizes  # later releases have the method in its place
    chosen = before.method if method is None else reduction_method(method)
    if normalizes is None:
        normalizes = before.normalizes and method is None
    if truth("experimental_normalize_gradients", normalizes) and chosen is not Method.SUM:
        raise OptionError(
            "experimental_normalize_gradients=True and gradient_accumulation_reduction_method="
            f"{chosen.name!r} both say how gradients are scaled. Leave the former out."
        )
    return Accumulating(
        steps=before.steps if steps is None else whole_number(STEPS, steps, 1),
        method=chosen,
        normalizes=normalizes,
        more=more,
    )
