"""What is reported of the metrics of several replicas.

ReplicatedMetricReductionMethod.NONE   -> "none"
ReplicatedMetricReductionMethod.LIST   -> "list"
ReplicatedMetricReductionMethod.SUM    -> "sum"
ReplicatedMetricReductionMethod.MEAN   -> "mean"
"""

import enum
from typing import Any

from millrace.errors import OptionError
from millrace.options import MetricReduction


class ReplicatedMetricReductionMethod(enum.Enum):
    """What is reported of the metrics of several replicas."""

    NONE = 1
    LIST = 2
    SUM = 3
    MEAN = 4


def metric_reduction(value: Any) -> MetricReduction:
    """Returns the native method; it may be given by its name in any case.

    Raises:
        OptionError: listing the names.
    """
    names = ReplicatedMetricReductionMethod.__members__
    if isinstance(value, ReplicatedMetricReductionMethod):
        return MetricReduction[value.name]
    if not isinstance(value, str) or value.upper() not in names:
        raise OptionError(
            f"replicated_metric_reduction_method must be one of {list(names)}. Received: {value!r}."
        )
    return MetricReduction[value.upper()]
