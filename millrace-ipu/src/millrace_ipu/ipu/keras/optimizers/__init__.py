"""The optimizers of `millrace_ipu.ipu.optimizers`, all of which are Keras optimizers here.

CrossReplicaOptimizer(opt)                        -> ipu.optimizers.CrossReplicaOptimizer
GradientAccumulationOptimizer(opt, n)             -> ipu.optimizers.GradientAccumulationOptimizerV2
CrossReplicaGradientAccumulationOptimizer(opt, n) -> the same with V2
MapGradientOptimizer(opt, function)               -> ipu.optimizers.MapGradientOptimizer
AdamIpuOptimizer, SGDIpuOptimizer                 of ipu_tensorflow_addons   `of_addons`
"""

from typing import Any

from millrace_ipu.ipu.keras.optimizers.of_addons import (  # noqa: F401 - names of this module
    AdamIpuOptimizer,
    SGDIpuOptimizer,
)
from millrace_ipu.ipu.optimizers import gradient_accumulation_optimizer as _accumulation
from millrace_ipu.ipu.optimizers.ipu_optimizer import (  # noqa: F401 - names of this module
    CrossReplicaOptimizer,
    IpuOptimizer,
    MapGradientOptimizer,
)
from millrace_ipu.ipu.replacements import other_name as _other_name

GradientAccumulationOptimizer = _accumulation.GradientAccumulationOptimizerV2
CrossReplicaGradientAccumulationOptimizer = (
    _accumulation.CrossReplicaGradientAccumulationOptimizerV2
)


def __getattr__(name: str) -> Any:
    return _other_name(__name__, name)
