"""How the gradients of an update's micro-batches become one.

GradientAccumulationReductionMethod.SUM            -> "sum"
GradientAccumulationReductionMethod.MEAN           -> "mean_then_sum": replicas are added up
GradientAccumulationReductionMethod.RUNNING_MEAN   -> "running_mean_then_sum"
"""

import enum
from typing import Any

from millrace.errors import OptionError


class GradientAccumulationReductionMethod(enum.Enum):
    """How the gradients of an update's micro-batches become one."""

    SUM = 0
    MEAN = 1
    RUNNING_MEAN = 2


def reduction_method(value: Any) -> GradientAccumulationReductionMethod:
    """Returns a method, which may be given by its name in any case.

    Raises:
        OptionError: listing the names.
    """
    if isinstance(value, GradientAccumulationReductionMethod):
        return value
    methods = GradientAccumulationReductionMethod.__members__
    if not isinstance(value, str) or value.upper() not in methods:
        raise OptionError(
            f"gradient_accumulation_reduction_method must be one of {list(methods)}. Received: "
            f"{value!r}."
        )
    return methods[value.upper()]
