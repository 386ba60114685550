"""The optimizers of `millrace_ipu.ipu.optimizers`, all of which are Keras optimizers here.

CrossReplicaOptimizer(opt)                        -> ipu.optimizers.CrossReplicaOptimizer
GradientAccumulationOptimizer(opt, n)             -> ipu.optimizers.GradientAccumulationOptimizerV2
CrossReplicaGradientAccumulationOptimizer(opt, n) -> the same with V2
MapGradientOptimizer(opt, function)               -> ipu.optimizers.MapGradientOptimizer
AdamIpuOptimizer, SGDIpuOptimizer, LAMBIpuOptimizer  of ipu_tensorflow_addons   `of_addons`
"""

from typing import Any

from millrace_ipu.ipu.keras.optimizers.of_addons import AdamIpuOptimizer as AdamIpuOptimizer
from millrace_ipu.ipu.keras.optimizers.of_addons import LAMBIpuOptimizer as LAMBIpuOptimizer
from millrace_ipu.ipu.keras.optimizers.of_addons import SGDIpuOptimizer as SGDIpuOptimizer
from millrace_ipu.ipu.optimizers import gradient_accumulation_optimizer as _accumulation
from millrace_ipu.ipu.optimizers.cross_replica_optimizer import CrossReplicaOptimizer  # noqa: F401
from millrace_ipu.ipu.optimizers.ipu_optimizer import IpuOptimizer as IpuOptimizer
from millrace_ipu.ipu.optimizers.map_gradient_optimizer import MapGradientOptimizer  # noqa: F401
from millrace_ipu.ipu.replacements import other_name as _other_name

GradientAccumulationOptimizer = _accumulation.GradientAccumulationOptimizerV2
CrossReplicaGradientAccumulationOptimizer = (
    _accumulation.CrossReplicaGradientAccumulationOptimizerV2
)


def __getattr__(name: str) -> Any:
    return _other_name(__name__, name)
