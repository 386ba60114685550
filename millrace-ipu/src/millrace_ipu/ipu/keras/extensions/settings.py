"""The settings of an extended model, as its setters received them.

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
from millrace.extend import Controller, MetricReduction, Reduction, Rules, truth, whole_number
from millrace_ipu.ipu.gradient_accumulation import GradientAccumulationReductionMethod as Method
from millrace_ipu.ipu.gradient_accumulation import reduction_method
from millrace_ipu.ipu.keras.extensions.arguments import STEPS
from millrace_ipu.ipu.keras.extensions.instances import Instances
from millrace_ipu.ipu.ops.schedules import PipelineSchedule, schedule_of

_REDUCTIONS = {
    Method.SUM: Reduction.SUM,
    Method.MEAN: Reduction.MEAN_THEN_SUM,
    Method.RUNNING_MEAN: Reduction.RUNNING_MEAN_THEN_SUM,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Accumulating:
    """The accumulation of gradients, and the keyword arguments of the setter."""

    steps: int | None = None
    method: Method = Method.SUM
    normalizes: bool = False  # by micro-batches and replicas, as one big batch
    more: Mapping[str, Any] = field(default_factory=dict)  # keyword arguments

    @property
    def reduction(self) -> Reduction:
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
        """The schedule of the pipeline."""
        return schedule_of(self.pipelining.more.get("pipeline_schedule"), self.serialization)

    def of_either(self, name: str) -> Any:
        """Returns a keyword argument that both setters take; None if neither received it."""
        value = self.pipelining.more.get(name)
        return self.accumulation.more.get(name) if value is None else value


@dataclass(frozen=True, slots=True)
class ExtendedRules(Rules):
    """Rules of a model with settings."""

    settings: Settings = Settings()
    epochs: int = 1  # of the running loop
    instances: Instances | None = None  # where each process has its part of the data


def rules_of(controller: Controller) -> ExtendedRules:
    """Returns the rules of an extended model."""
    rules = controller.setup.rules
    assert isinstance(rules, ExtendedRules)  # noqa: S101 - `extend` has put them
    return rules


def settings_of(controller: Controller) -> Settings:
    """Returns the settings of an extended model."""
    return rules_of(controller).settings


def accumulating(
    before: Accumulating,
    steps: object,
    normalizes: object,
    method: object,
    more: Mapping[str, object],
) -> Accumulating:
    """Returns the settings after a call of a setter.

    Args:
        before: the settings so far; an argument that is None keeps its value there.
        steps: `gradient_accumulation_steps_per_replica`.
        normalizes: `experimental_normalize_gradients`.
        method: `gradient_accumulation_reduction_method`.
        more: the keyword arguments, which replace the earlier ones.

    Raises:
        OptionError: for a number below 1, an unknown method, or two arguments that exclude each
            other.
    """
    if method is None and not isinstance(normalizes, bool | None):
        normalizes, method = None, normalizes  # later releases take the method second
    reduction = before.method if method is None else reduction_method(method)
    if normalizes is None:
        normalizes = before.normalizes and method is None
    is_normalized = truth("experimental_normalize_gradients", normalizes)
    if is_normalized and reduction is not Method.SUM:
        raise OptionError(
            "experimental_normalize_gradients=True and gradient_accumulation_reduction_method="
            f"{reduction.name!r} both scale gradients. Leave the former out."
        )
    return Accumulating(
        steps=before.steps if steps is None else whole_number(STEPS, steps, 1),
        method=reduction,
        normalizes=is_normalized,
        more=more,
    )
