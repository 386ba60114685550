"""What accumulating optimizers are asked for, checked."""

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
from millrace.ipu.inert import inert


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
    """Says what is not done about the state of an optimizer in a loop.

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
        inert(
            "offload_weight_update_variables of a gradient accumulation optimizer",
            "A loop keeps them on the device: set model.set_offload_options() and use fit().",
        )
    if shards:
        inert(
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
