"""The mean of gradients over replicas.

CrossReplicaOptimizer(opt) -> millrace_ipu.optimizers.cross_replica.CrossReplicaOptimizer(opt)
"""

import keras

from millrace_ipu.ipu.optimizers.ipu_optimizer import Minimizing
from millrace_ipu.optimizers import cross_replica


@keras.saving.register_keras_serializable(package="millrace_ipu.ipu")
class CrossReplicaOptimizer(Minimizing, cross_replica.CrossReplicaOptimizer):
    """Averages gradients over replicas, and applies them.

    Args:
        opt: a Keras optimizer.
        name: of the new optimizer.
    """

    def __init__(self, opt: keras.optimizers.Optimizer, name: str = "CrossReplicaOptimizer"):
        cross_replica.CrossReplicaOptimizer.__init__(self, opt, name)
