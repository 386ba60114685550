"""How many micro-batches make an update of an extended model, and how their gradients add up.

gradient_accumulation_steps_per_replica              -> Accumulation.steps, Pipelining.steps
gradient_accumulation_reduction_method, None         -> "sum", over micro-batches and replicas
GradientAccumulationReductionMethod.MEAN             -> "mean_then_sum"
GradientAccumulationReductionMethod.RUNNING_MEAN     -> "running_mean_then_sum"
experimental_normalize_gradients=True                -> "mean"
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from millrace.errors import OptionError
from millrace.ipu.gradient_accumulation import GradientAccumulationReductionMethod as Method
from millrace.ipu.gradient_accumulation import reduction_method
from millrace.ipu.keras.extensions.reasons import STEPS
from millrace.options import Reduction, truth, whole_number

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
