"""Gradients of a loss that has been computed, as `optimizer.minimize(loss)` of TensorFlow 1 takes.

    body(x)                          loss = ...;  optimizer.minimize(loss)
    with_losses(body)(x)     1       runs `body` up to `minimize`, which has no gradients yet
                             2       differentiates that part of it
                             3       runs `body` again: `minimize` finds the gradients

JAX differentiates functions, and not values: so the function that has computed the loss runs again.
What the first two runs assign and enqueue is forgotten.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import jax
import keras
from jax.core import Tracer

from millrace import value_and_grad
from millrace.errors import DTypeError
from millrace.extend import (
    ScopedValue,
    VariableScope,
    collecting,
    current_scope,
    is_tracing,
    look_at,
    tap_again,
)

Result = TypeVar("Result")
Pairs = list[tuple[Any, keras.Variable]]  # of gradients and variables


class _LossReached(BaseException):  # a program's `except Exception` must let it pass
    """Ends a run at a loss without gradients."""

    def __init__(self, loss: Any, variables: Sequence[keras.Variable] | None):
        super().__init__()
        self.loss, self.variables = loss, variables


# The gradients of the first losses of a run, which earlier runs have found.
_known = ScopedValue[Iterator[Pairs] | None](None)


def with_losses(function: Callable[..., Result]) -> Any:
    """Returns a function that is traced, in which `gradients_of` takes losses it has computed."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Result:
        if current_scope() is None and not is_tracing():  # the host drives it
            return function(*args, **kwargs)
        known: list[Pairs] = []

        def once() -> tuple[Result, list[keras.Variable], list[Any]]:
            with VariableScope() as scope, _known.bound_to(iter(known)):
                result = function(*args, **kwargs)
                assigned = list(scope.assigned.values())
                return result, assigned, scope.values(assigned)

        def loss() -> Any:
            try:
                return once()  # which ends at the loss
            except _LossReached as reached:
                return reached.loss

        while True:
            try:
                (result, assigned, new), tapped = collecting(once)()
            except _LossReached as reached:
                with VariableScope():
                    known.append(collecting(gradients_of)(loss, reached.variables)[0])
                continue
            for variable, value in zip(assigned, new, strict=True):
                variable.assign(value)
            tap_again(tapped)
            return result

    run.of_user = function  # type: ignore[attr-defined]
    return run


def gradients_of(
    loss: Callable[[], object] | jax.Array, variables: Sequence[keras.Variable] | None = None
) -> Pairs:
    """Returns pairs of gradients and variables.

    Args:
        loss: a function without arguments; or a value that the body of a loop, or a compiled
            function, has computed.
        variables: None takes all trainable variables that the loss is computed from.

    Raises:
        DTypeError: if `loss` is a value that no compiled function has computed.
    """
    if callable(loss):
        if variables is None:
            touched = look_at(loss)
            variables = [v for v in (*touched.fixed, *touched.changed) if v.trainable]
        return list(zip(value_and_grad(loss, variables)[1], variables, strict=True))
    known = _known.get()
    if known is None or not isinstance(loss, Tracer):
        raise DTypeError(
            "The gradients of a value are known only in a function that tf.function or a loop "
            f"compiles, and that computes the value itself. Received: {loss!r}. Set a function, "
            "minimize(lambda: loss_of(x, y), variables), or take gradients by tf.GradientTape or "
            "millrace.value_and_grad() and call apply_gradients(zip(gradients, variables))."
        )
    if (pairs := next(known, None)) is None:
        raise _LossReached(loss, variables)
    return pairs
