"""Optimizers around other optimizers.

CrossReplicaOptimizer(opt)                            -> millrace.optimizers.cross_replica
GradientAccumulationOptimizerV2(opt, n), without V2   -> millrace.optimizers.accumulating
CrossReplicaGradientAccumulationOptimizerV2(opt, n)   -> accumulating, around cross_replica
MapGradientOptimizer(opt, function)                   no native counterpart: maps gradients
"""

from typing import Any

from millrace.ipu.optimizers.cross_replica_optimizer import (
    CrossReplicaOptimizer as CrossReplicaOptimizer,
)
from millrace.ipu.optimizers.gradient_accumulation_optimizer import (
    CrossReplicaGradientAccumulationOptimizer as CrossReplicaGradientAccumulationOptimizer,
)
from millrace.ipu.optimizers.gradient_accumulation_optimizer import (
    CrossReplicaGradientAccumulationOptimizerV2 as CrossReplicaGradientAccumulationOptimizerV2,
)
from millrace.ipu.optimizers.gradient_accumulation_optimizer import (
    GradientAccumulationOptimizer as GradientAccumulationOptimizer,
)
from millrace.ipu.optimizers.gradient_accumulation_optimizer import (
    GradientAccumulationOptimizerV2 as GradientAccumulationOptimizerV2,
)
from millrace.ipu.optimizers.ipu_optimizer import IpuOptimizer as IpuOptimizer
from millrace.ipu.optimizers.map_gradient_optimizer import (
    MapGradientOptimizer as MapGradientOptimizer,
)
from millrace.ipu.replacements import other_name as _other_name


def __getattr__(name: str) -> Any:
    return _other_name(__name__, name)
