"""Optimizers around other optimizers.

CrossReplicaOptimizer(opt)                            the mean of the replicas' gradients
GradientAccumulationOptimizerV2(opt, n), without V2   one update in n iterations of a loop
CrossReplicaGradientAccumulationOptimizerV2(opt, n)   accumulates around the mean
MapGradientOptimizer(opt, function)                   maps gradients
"""

from typing import Any

from millrace_ipu.ipu.optimizers.gradient_accumulation_optimizer import (  # noqa: F401 - names of this module
    CrossReplicaGradientAccumulationOptimizer,
    CrossReplicaGradientAccumulationOptimizerV2,
    GradientAccumulationOptimizer,
    GradientAccumulationOptimizerV2,
)
from millrace_ipu.ipu.optimizers.ipu_optimizer import (  # noqa: F401 - names of this module
    CrossReplicaOptimizer,
    IpuOptimizer,
    MapGradientOptimizer,
)
from millrace_ipu.ipu.replacements import other_name as _other_name


def __getattr__(name: str) -> Any:
    return _other_name(__name__, name)
