"""The optimizer function of a pipeline, as `millrace.pipeline` wants it.

OptimizerFunctionOutput(opt, loss, variables=...)   -> (optimizer, loss, variables)
    opt in a CrossReplicaOptimizer           -> the one inside; the pipeline takes the mean itself
    opt in a GradientAccumulationOptimizer   -> refused: a pipeline accumulates itself
"""

import functools
from typing import Any

import jax
import keras

from millrace._compat.keras_optimizers import let_names_be_given
from millrace.errors import DTypeError, LoopError, OptionError
from millrace.optimizers.accumulating import AccumulatingOptimizer
from millrace.optimizers.cross_replica import CrossReplicaOptimizer


class OptimizerFunctionOutput:
    """An optimizer, the loss that it lowers, and what it trains."""

    def __init__(
        self,
        opt: Any,
        loss: Any,
        compute_gradients_args: Any = None,
        compute_gradients_kwargs: Any = None,
        apply_gradients_args: Any = None,
        apply_gradients_kwargs: Any = None,
        variables: Any = None,
        tape: Any = None,
    ):
        arguments = {
            "opt": (opt, keras.optimizers.Optimizer),
            "loss": (loss, jax.Array),
            "compute_gradients_args": (compute_gradients_args, tuple),
            "compute_gradients_kwargs": (compute_gradients_kwargs, dict),
            "apply_gradients_args": (apply_gradients_args, tuple),
            "apply_gradients_kwargs": (apply_gradients_kwargs, dict),
            "variables": (variables, (tuple, list)),
        }
        for name, (value, kind) in arguments.items():
            required = name in ("opt", "loss")
            if (required or value is not None) and not isinstance(value, kind):
                kinds = kind if isinstance(kind, tuple) else (kind,)
                raise DTypeError(
                    f"{name} of OptimizerFunctionOutput is a "
                    f"{' or '.join(each.__name__ for each in kinds)}. Received: {value!r} of type "
                    f"{type(value).__name__}."
                )
        if tape is not None and not callable(getattr(tape, "gradient", None)):
            raise DTypeError(
                f"tape of OptimizerFunctionOutput is a GradientTape. Received: {tape!r}."
            )
        if compute_gradients_args is not None or compute_gradients_kwargs is not None:
            raise OptionError(
                "compute_gradients_args and compute_gradients_kwargs belong to optimizers of "
                "TensorFlow 1, and opt is one of Keras. Leave them out; variables says what it "
                "trains."
            )
        if variables is not None and tape is not None:
            raise OptionError(
                "OptimizerFunctionOutput takes variables or tape, not both: each says what is "
                "trained. Remove one of them."
            )
        self.opt, self.loss, self.variables, self.tape = opt, loss, variables, tape


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


let_names_be_given()  # to apply_gradients of Keras, as casting optimizers do
