"""Optimizers that accumulate gradients over iterations of `loops.repeat`.

GradientAccumulationOptimizerV2(opt, n)             -> AccumulatingOptimizer(opt, n)
GradientAccumulationOptimizer(opt, n)               -> the same, for SGD
CrossReplicaGradientAccumulationOptimizerV2, ...    -> AccumulatingOptimizer(CrossReplica(opt), n)
dtype                                               -> dtype; opt gets gradients of that dtype
offload_weight_update_variables, replicated_optimizer_state_sharding, verify_usage  without effect
"""

from typing import Any

import keras

from millrace.errors import OptionError, PlanError
from millrace.extend import host_memory, whole_number
from millrace_ipu.ipu.accumulator_dtype import AnyDtype, optimizer_dtype
from millrace_ipu.ipu.config import current_system
from millrace_ipu.ipu.gradient_accumulation import GradientAccumulationReductionMethod as Method
from millrace_ipu.ipu.gradient_accumulation import ReductionMethod
from millrace_ipu.ipu.gradient_accumulation import reduction_method as method_of
from millrace_ipu.ipu.optimizers.ipu_optimizer import CrossReplicaOptimizer, Minimizing
from millrace_ipu.optimizers.accumulating import AccumulatingOptimizer
from millrace_ipu.tensorflow.no_operation import warn_no_effect


@keras.saving.register_keras_serializable(package="millrace_ipu.ipu")
class GradientAccumulationOptimizerV2(Minimizing, AccumulatingOptimizer):
    """Applies the sum of the gradients of `num_mini_batches` iterations of a loop.

    Args:
        opt: a Keras optimizer.
        num_mini_batches: iterations for each update.
        offload_weight_update_variables: without effect; True is an error where the device has no
            host memory.
        replicated_optimizer_state_sharding: without effect.
        dtype: of the accumulators: None, a dtype, or a function of a variable. `opt` receives
            gradients of this dtype, and must cast them if the variable has another one.
        reduction_method: SUM, MEAN or RUNNING_MEAN.
        name: of the new optimizer.

    Raises:
        OptionError: for a number below 1, or an unknown reduction method.
        DTypeError: for another dtype.
        PlanError: for state that is to be offloaded on a device without host memory.
    """

    def __init__(
        self,
        opt: keras.optimizers.Optimizer,
        num_mini_batches: int,
        offload_weight_update_variables: bool | None = None,
        replicated_optimizer_state_sharding: bool = False,
        dtype: AnyDtype = None,
        reduction_method: ReductionMethod = Method.SUM,
        name: str = "GradientAccumulationOptimizerV2",
    ):
        _check_offload(offload_weight_update_variables, replicated_optimizer_state_sharding)
        AccumulatingOptimizer.__init__(
            self,
            opt,
            whole_number("num_mini_batches", num_mini_batches, 1),
            reduction="sum" if method_of(reduction_method) is Method.SUM else "mean",
            dtype=optimizer_dtype(dtype),
            keeps_dtype=True,
            name=name,
        )


@keras.saving.register_keras_serializable(package="millrace_ipu.ipu")
class CrossReplicaGradientAccumulationOptimizerV2(GradientAccumulationOptimizerV2):
    """Accumulates on each replica, and applies the mean over replicas, once for each update."""

    def __init__(self, opt: keras.optimizers.Optimizer, *args: Any, **kwargs: Any):
        kwargs.setdefault("name", "CrossReplicaGradientAccumulationOptimizerV2")
        super().__init__(CrossReplicaOptimizer(opt), *args, **kwargs)


@keras.saving.register_keras_serializable(package="millrace_ipu.ipu")
class GradientAccumulationOptimizer(GradientAccumulationOptimizerV2):
    """Accumulates for SGD, with or without momentum."""

    def __init__(
        self,
        opt: keras.optimizers.Optimizer,
        num_mini_batches: int,
        verify_usage: bool = True,
        name: str = "GradientAccumulationOptimizer",
    ):
        inner = opt
        while not isinstance(inner, keras.optimizers.SGD):
            inner = getattr(inner, "inner_optimizer", None)
            if inner is None:
                raise OptionError(
                    "GradientAccumulationOptimizer takes SGD, with or without momentum. Received: "
                    f"{type(opt).__name__}. Set GradientAccumulationOptimizerV2 for others."
                )
        super().__init__(opt, num_mini_batches, name=name)


@keras.saving.register_keras_serializable(package="millrace_ipu.ipu")
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


def _check_offload(offloads: bool | None, shards: bool) -> None:
    """Warns about options for the state of an optimizer that have no effect in a loop.

    Raises:
        PlanError: for state that is to be offloaded on a device without host memory.
    """
    device = current_system().devices[0]
    if offloads and host_memory(device) is None:
        raise PlanError(
            "offload_weight_update_variables=True keeps the optimizer's variables in host memory, "
            f"and {device} has no separate host memory. Set offload_weight_update_variables=None, "
            "which offloads them where that is possible."
        )
    if offloads:
        warn_no_effect(
            "offload_weight_update_variables of a gradient accumulation optimizer",
            "A loop keeps them on the device. Call model.set_offload_options(), and use fit().",
        )
    if shards:
        warn_no_effect(
            "replicated_optimizer_state_sharding of a gradient accumulation optimizer",
            "Each replica of a loop has the whole state. Set it in pipeline(), or on a model.",
        )
