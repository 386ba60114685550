"""Optimizers that accumulate gradients over iterations of `loops.repeat`.

GradientAccumulationOptimizerV2(opt, n)             -> AccumulatingOptimizer(opt, n)
GradientAccumulationOptimizer(opt, n)               -> the same, for SGD
CrossReplicaGradientAccumulationOptimizerV2, ...    -> AccumulatingOptimizer(CrossReplica(opt), n)
dtype                                               -> dtype; opt gets gradients of that dtype
offload_weight_update_variables, replicated_optimizer_state_sharding, verify_usage  of no effect
"""

from typing import Any

import keras
from keras.backend import standardize_dtype

from millrace._compat.jax_memory import host_memory
from millrace.errors import DTypeError, OptionError, PlanError
from millrace.ipu.config import current_system
from millrace.ipu.gradient_accumulation import (
    GradientAccumulationReductionMethod,
    reduction_method,
)
from millrace.ipu.no_effect import warn_no_effect
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
        check_offload(offload_weight_update_variables, replicated_optimizer_state_sharding)
        AccumulatingOptimizer.__init__(
            self,
            opt,
            whole_number("num_mini_batches", num_mini_batches, 1),
            reduction=native_reduction(reduction_method),
            dtype=native_dtype(dtype),
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
        check_plain(opt)
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


def native_dtype(choice: Any) -> Any:
    """Returns a choice of the accumulators' dtypes as native optimizers take it.

    Raises:
        DTypeError: if it is neither None, nor a dtype, nor a function that returns one.
    """
    if choice is None or _is_dtype(choice):
        return choice
    if not callable(choice):
        raise _no_dtype(choice)

    def chosen(variable: Any) -> Any:
        dtype = choice(variable)
        if not _is_dtype(dtype):
            raise _no_dtype(dtype)
        return dtype

    return chosen


def native_reduction(choice: Any) -> str:
    """Returns a reduction method as native optimizers take it."""
    is_sum = reduction_method(choice) is GradientAccumulationReductionMethod.SUM
    return "sum" if is_sum else "mean"


def check_offload(offloads: bool | None, shards: bool) -> None:
    """Warns of options for the state of an optimizer that have no effect in a loop.

    Raises:
        PlanError: if it was to be kept in host memory, of which the device has none.
    """
    device = current_system().devices[0]
    if offloads and host_memory(device) is None:
        raise PlanError(
            "offload_weight_update_variables=True keeps the optimizer's variables in host memory, "
            f"and {device} has no memory of its own besides. Set "
            "offload_weight_update_variables=None, which does it where it can be done."
        )
    if offloads:
        warn_no_effect(
            "offload_weight_update_variables of a gradient accumulation optimizer",
            "A loop keeps them on the device: set model.set_offload_options() and use fit().",
        )
    if shards:
        warn_no_effect(
            "replicated_optimizer_state_sharding of a gradient accumulation optimizer",
            "Each replica of a loop has all of the state: set it in pipeline(), or in the model.",
        )


def check_plain(optimizer: Any) -> None:
    """Refuses all but plain SGD, with or without momentum.

    Raises:
        OptionError: naming the optimizer that takes all others.
    """
    while hasattr(optimizer, "inner_optimizer"):
        optimizer = optimizer.inner_optimizer
    if not isinstance(optimizer, keras.optimizers.SGD):
        raise OptionError(
            "GradientAccumulationOptimizer takes SGD, with or without momentum. Received: "
            f"{type(optimizer).__name__}. Set GradientAccumulationOptimizerV2 for others."
        )


def _is_dtype(choice: Any) -> bool:
    try:
        return choice is not None and bool(standardize_dtype(choice))
    except (TypeError, ValueError):
        return False


def _no_dtype(choice: Any) -> DTypeError:
    return DTypeError(
        "dtype of an accumulation is None, a dtype, or a function of a variable that returns one. "
        f"Received: {choice!r}. Set dtype='float32' for all accumulators."
    )
