"""Gradients of a function with respect to the Keras variables that it uses.

fn reads variables -> a scope gives it traced values in their place -> jax.value_and_grad
fn assigns others (seeds, running statistics) -> returned next to the loss, assigned outside
"""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import jax
import keras

from millrace.api.own_loops.scope import VariableScope
from millrace.errors import LoopError, OptionError
from millrace.programs.taps.taps import value_and_grad as value_and_grad_with_taps

FunctionResult = TypeVar("FunctionResult")


def value_and_grad(
    fn: Callable[..., FunctionResult],
    variables: Iterable[keras.Variable],
    *args: object,
    **kwargs: object,
) -> tuple[FunctionResult, list[jax.Array]]:
    """Calls `fn` and differentiates its loss with respect to variables.

        weights = model.trainable_variables
        loss, grads = millrace.value_and_grad(lambda: loss_fn(y, model(x)), weights)
        optimizer.apply(grads, weights)

    Args:
        fn: returns the loss, a scalar, or a tuple that begins with it.
        variables: Keras variables that `fn` uses.
        *args: arguments for `fn`.
        **kwargs: keyword arguments for `fn`.

    Returns:
        The result of `fn`, and a list of gradients in the order of `variables`.

    Raises:
        LoopError: if `fn` is not a function, or the loss not a scalar of a floating type.
        OptionError: if `variables` cannot be iterated.
    """
    if not callable(fn):
        raise LoopError(
            f"value_and_grad() differentiates a function. Received: {fn!r} of type "
            f"{type(fn).__name__}. Pass a function that returns the loss: lambda: loss_fn(y, "
            "model(x))."
        )
    if not isinstance(variables, Iterable):
        advice = "model.trainable_variables" if isinstance(variables, keras.Layer) else "[variable]"
        raise OptionError(
            "variables of value_and_grad() must be a list of Keras variables. Received: "
            f"{variables!r} of type {type(variables).__name__}. Set variables={advice}."
        )
    variables = list(variables)
    assigned: list[keras.Variable] = []

    def differentiated(values: list[jax.Array]) -> Any:
        with VariableScope(zip(variables, values, strict=True)) as scope:
            result = fn(*args, **kwargs)
            assigned[:] = scope.assigned.values()
            new = scope.values(assigned)
        return _loss_of(result), (result, new)

    values = [variable.value for variable in variables]
    (_, (result, new)), gradients = value_and_grad_with_taps(differentiated)(values)
    for variable, value in zip(assigned, new, strict=True):
        variable.assign(value)
    return result, gradients


def _loss_of(result: object) -> jax.Array:
    loss = jax.numpy.asarray(result[0] if isinstance(result, tuple) else result)
    if loss.shape != () or not jax.numpy.issubdtype(loss.dtype, jax.numpy.floating):
        raise LoopError(
            f"value_and_grad() differentiates one number, and fn returned {loss.dtype}"
            f"{list(loss.shape)}. Return a scalar loss: keras.ops.mean(losses); more values go "
            "into a tuple that begins with it."
        )
    return loss
