"""The optimizer function of a pipeline, as `millrace.pipeline` wants it.

OptimizerFunctionOutput(opt, ...)            -> (optimizer, loss, variables)
    opt in a CrossReplicaOptimizer           -> the one inside; the pipeline takes the mean itself
    opt in a GradientAccumulationOptimizer   -> refused: a pipeline accumulates itself
"""

import functools
from typing import Any

from millrace._compat.keras_optimizers import let_names_be_given
from millrace.errors import LoopError, OptionError
from millrace.ipu.ops.optimizer_function_output import OptimizerFunctionOutput
from millrace.optimizers.accumulating import AccumulatingOptimizer
from millrace.optimizers.cross_replica import CrossReplicaOptimizer

let_names_be_given()  # to apply_gradients of Keras, as casting optimizers do


def native_function(function: Any, replicas: int) -> Any:
    """Returns an optimizer function as `millrace.pipeline` wants it.

    Args:
        function: returns an `OptimizerFunctionOutput`.
        replicas: of the pipeline, of which each has a gradient of its own.
    """

    @functools.wraps(function)
    def native(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
        output = function(*args, **kwargs)
        optimizer = _checked(output, replicas)
        more = () if output.variables is None else (list(output.variables),)
        return optimizer, output.loss, *more

    return native


def _checked(output: Any, replicas: int) -> Any:
    if not isinstance(output, OptimizerFunctionOutput):
        raise LoopError(
            "The optimizer function of a pipeline returns a pipelining_ops."
            f"OptimizerFunctionOutput(opt, loss). Received: {output!r}."
        )
    if isinstance(output.opt, AccumulatingOptimizer):
        raise OptionError(
            f"{type(output.opt).__name__} accumulates gradients, and so does a pipeline. Give "
            "OptimizerFunctionOutput the optimizer inside it, and the pipeline "
            "gradient_accumulation_count."
        )
    optimizer = without_exchange(output.opt)
    if replicas > 1 and optimizer is output.opt:
        raise OptionError(
            f"The pipeline runs as {replicas} replicas, and {type(output.opt).__name__} would "
            "update each of them by its own gradients. Wrap it in CrossReplicaOptimizer, or "
            "configure as many devices as the pipeline takes."
        )
    return optimizer


def without_exchange(optimizer: Any) -> Any:
    """Returns the optimizer inside a CrossReplicaOptimizer, any other one as it is."""
    is_exchange = isinstance(optimizer, CrossReplicaOptimizer)
    return optimizer.wrapped_optimizer if is_exchange else optimizer
