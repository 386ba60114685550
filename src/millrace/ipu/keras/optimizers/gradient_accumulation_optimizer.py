"""Is `millrace.ipu.keras.optimizers`."""

from millrace.ipu.keras.optimizers import (
    CrossReplicaGradientAccumulationOptimizer as CrossReplicaGradientAccumulationOptimizer,
)
from millrace.ipu.keras.optimizers import (
    GradientAccumulationOptimizer as GradientAccumulationOptimizer,
)
