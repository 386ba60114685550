"""The reduction of an update's micro-batch gradients to one gradient.

GradientAccumulationReductionMethod.SUM            -> "sum"
GradientAccumulationReductionMethod.MEAN           -> "mean_then_sum": summed over replicas
GradientAccumulationReductionMethod.RUNNING_MEAN   -> "running_mean_then_sum"
"""

import enum
from typing import TypeAlias

from millrace_ipu.ipu.enums import member_by_name


class GradientAccumulationReductionMethod(enum.Enum):
    """The reduction of an update's micro-batch gradients to one gradient."""

    SUM = 0
    MEAN = 1
    RUNNING_MEAN = 2


ReductionMethod: TypeAlias = GradientAccumulationReductionMethod | str  # a member or its name


def reduction_method(value: object) -> GradientAccumulationReductionMethod:
    """Returns a method, which may be given by its name in any case.

    Raises:
        OptionError: for anything else, with all names.
    """
    name = "gradient_accumulation_reduction_method"
    return member_by_name(GradientAccumulationReductionMethod, name, value)
