"""The optimizer function of a pipeline, in the form for `millrace.pipeline`.

OptimizerFunctionOutput(opt, loss, variables=...)   -> (optimizer, loss, variables)
    opt in a CrossReplicaOptimizer           -> opt alone, since the pipeline takes the mean itself
    opt in a GradientAccumulationOptimizer   -> refused, since the pipeline accumulates itself
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import keras

from millrace.errors import DTypeError, LoopError, OptionError
from millrace_ipu._compat.keras_optimizers import let_names_be_given
from millrace_ipu.ipu.optimizers.as_accumulated import AsAccumulated
from millrace_ipu.ipu.optimizers.gradient_accumulation_optimizer import AccumulatingOptimizer
from millrace_ipu.ipu.optimizers.ipu_optimizer import CrossReplicaOptimizer

_KINDS: dict[str, tuple[type, ...]] = {
    "opt": (keras.optimizers.Optimizer,),
    "loss": (jax.Array,),
    "compute_gradients_args": (tuple,),
    "compute_gradients_kwargs": (dict,),
    "apply_gradients_args": (tuple,),
    "apply_gradients_kwargs": (dict,),
    "variables": (tuple, list),
}


class OptimizerFunctionOutput:
    """An optimizer, the loss that it minimizes, and the variables that it trains.

    Args:
        opt: a Keras optimizer.
        loss: a scalar.
        compute_gradients_args: refused; it belongs to optimizers of TensorFlow 1.
        compute_gradients_kwargs: refused likewise.
        apply_gradients_args: without effect.
        apply_gradients_kwargs: without effect.
        variables: the variables to train; None trains all that the stages use.
        tape: a GradientTape, without effect.

    Raises:
        DTypeError: for a value of another type.
        OptionError: for arguments that are refused, or for both variables and tape.
    """

    def __init__(
        self,
        opt: keras.optimizers.Optimizer,
        loss: jax.Array,
        compute_gradients_args: tuple[object, ...] | None = None,
        compute_gradients_kwargs: Mapping[str, object] | None = None,
        apply_gradients_args: tuple[object, ...] | None = None,
        apply_gradients_kwargs: Mapping[str, object] | None = None,
        variables: Sequence[keras.Variable] | None = None,
        tape: object = None,
    ):
        given = locals()
        for name, kinds in _KINDS.items():
            value = given[name]
            if value is None and name not in ("opt", "loss"):
                continue
            if not isinstance(value, kinds):
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
                "TensorFlow 1, and opt is one of Keras. Leave them out, and give the variables to "
                "train as variables."
            )
        if variables is not None and tape is not None:
            raise OptionError(
                "OptimizerFunctionOutput takes variables or tape, not both: each determines the "
                "variables to train. Remove one of them."
            )
        self.opt, self.loss, self.variables, self.tape = opt, loss, variables, tape


def native_function(
    function: Callable[..., object], replicas: int, casts_gradients: bool
) -> Callable[..., tuple[Any, ...]]:
    """Returns an optimizer function in the form for `millrace.pipeline`.

    Args:
        function: returns an `OptimizerFunctionOutput`.
        replicas: number of replicas of the pipeline, each with its own gradients.
        casts_gradients: whether gradients are cast to the dtypes of the variables. False calls
            `apply_gradients` of the optimizer with gradients in the dtype of their accumulators.
    """

    @functools.wraps(function)
    def native(*args: object, **kwargs: object) -> tuple[Any, ...]:
        output = function(*args, **kwargs)
        if not isinstance(output, OptimizerFunctionOutput):
            raise LoopError(
                "The optimizer function of a pipeline returns a pipelining_ops."
                f"OptimizerFunctionOutput(opt, loss). Received: {output!r}."
            )
        optimizer = _checked(output, replicas)
        more = () if output.variables is None else (list(output.variables),)
        if not casts_gradients:
            optimizer = AsAccumulated(optimizer)
        return optimizer, output.loss, *more

    return native


def _checked(output: OptimizerFunctionOutput, replicas: int) -> keras.optimizers.Optimizer:
    if isinstance(output.opt, AccumulatingOptimizer):
        raise OptionError(
            f"{type(output.opt).__name__} accumulates gradients, and so does a pipeline. Give "
            "OptimizerFunctionOutput the optimizer inside it, and set "
            "gradient_accumulation_count in pipeline()."
        )
    is_exchange = isinstance(output.opt, CrossReplicaOptimizer)
    optimizer = output.opt.wrapped_optimizer if is_exchange else output.opt
    if replicas > 1 and not is_exchange:
        raise OptionError(
            f"The pipeline runs as {replicas} replicas and applies the mean of their gradients, "
            f"which {type(output.opt).__name__} does not ask for. Wrap it in "
            "CrossReplicaOptimizer, or configure only as many devices as one replica takes."
        )
    return optimizer


let_names_be_given()  # to apply_gradients of Keras, as casting optimizers do
