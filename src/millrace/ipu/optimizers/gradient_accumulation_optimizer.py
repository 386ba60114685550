"""Accumulation over turns of `loops.repeat`.

GradientAccumulationOptimizerV2(opt, n)             -> AccumulatingOptimizer(opt, n)
GradientAccumulationOptimizer(opt, n)               -> the same, for SGD
CrossReplicaGradientAccumulationOptimizerV2, ...    -> AccumulatingOptimizer(CrossReplica(opt), n)
dtype                                               -> dtype; opt gets gradients of that dtype
offload_weight_update_variables, replicated_optimizer_state_sharding, verify_usage  of no effect
"""

from typing import Any

import keras

from millrace.ipu.gradient_accumulation import GradientAccumulationReductionMethod
from millrace.ipu.optimizers import accumulation_checks as checks
from millrace.ipu.optimizers.cross_replica_optimizer import CrossReplicaOptimizer
from millrace.ipu.optimizers.ipu_optimizer import Minimizing
from millrace.optimizers.accumulating import AccumulatingOptimizer
from millrace.options import whole_number


@keras.saving.register_keras_serializable(package="millrace.ipu")
class GradientAccumulationOptimizerV2(Minimizing, AccumulatingOptimizer):
    """Applies the sum of the gradients of `num_mini_batches` turns of a loop.

    Args:
        opt: a Keras optimizer.
        num_mini_batches: turns for each update.
        offload_weight_update_variables: of no effect, but an error where it is True and impossible.
        replicated_optimizer_state_sharding: of no effect.
        dtype: of the accumulators: None, a dtype, or a function of a variable. `opt` is given
            gradients of this dtype, and must cast them if it is not the variable's.
        reduction_method: SUM, MEAN or RUNNING_MEAN.
        name: of this one.
    """

    def __init__(
        self,
        opt: keras.optimizers.Optimizer,
        num_mini_batches: int,
        offload_weight_update_variables: bool | None = None,
        replicated_optimizer_state_sharding: bool = False,
        dtype: Any = None,
        reduction_method: Any = GradientAccumulationReductionMethod.SUM,
        name: str = "GradientAccumulationOptimizerV2",
    ):
        checks.check_offload(offload_weight_update_variables, replicated_optimizer_state_sharding)
        AccumulatingOptimizer.__init__(
            self,
            opt,
            whole_number("num_mini_batches", num_mini_batches, 1),
            reduction=checks.native_reduction(reduction_method),
            dtype=checks.native_dtype(dtype),
            keeps_dtype=True,
            name=name,
        )


@keras.saving.register_keras_serializable(package="millrace.ipu")
class CrossReplicaGradientAccumulationOptimizerV2(GradientAccumulationOptimizerV2):
    """Accumulates on each replica, and applies the mean over replicas: one exchange per update."""

    def __init__(self, opt: keras.optimizers.Optimizer, *args: Any, **kwargs: Any):
        kwargs.setdefault("name", "CrossReplicaGradientAccumulationOptimizerV2")
        super().__init__(CrossReplicaOptimizer(opt), *args, **kwargs)


@keras.saving.register_keras_serializable(package="millrace.ipu")
class GradientAccumulationOptimizer(GradientAccumulationOptimizerV2):
    """Accumulates for SGD, with or without momentum."""

    def __init__(
        self,
        opt: keras.optimizers.Optimizer,
        num_mini_batches: int,
        verify_usage: bool = True,
        name: str = "GradientAccumulationOptimizer",
    ):
        del verify_usage
        checks.check_plain(opt)
        super().__init__(opt, num_mini_batches, name=name)


@keras.saving.register_keras_serializable(package="millrace.ipu")
class CrossReplicaGradientAccumulationOptimizer(GradientAccumulationOptimizer):
    """Accumulates for SGD on each replica, and applies the mean over replicas."""

    def __init__(
        self,
        opt: keras.optimizers.Optimizer,
        num_mini_batches: int,
        verify_usage: bool = True,
        name: str = "CrossReplicaGradientAccumulationOptimizer",
    ):
        super().__init__(CrossReplicaOptimizer(opt), num_mini_batches, verify_usage, name)
