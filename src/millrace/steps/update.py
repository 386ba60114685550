"""One gradient, one change of the weights.

    gradient of a micro-batch -> optimizer.prepare(...) -> accumulated -> the update

An optimizer, or one that it wraps, may have a method `prepare(gradients, variables)`, which runs
on the gradients of each micro-batch. When `are_prepared` returns True the optimizer must not
prepare again the gradients that it applies.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, cast

import jax
import keras

from millrace.steps.accumulate import Gradients
from millrace.steps.state import State, as_lists, as_state, with_dtypes_of
from millrace.threads.scoped_value import ScopedValue

_prepared = ScopedValue(False)


class _Preparing(Protocol):
    def prepare(
        self, gradients: list[jax.Array], variables: Sequence[keras.Variable]
    ) -> list[jax.Array]: ...


def prepared(
    optimizer: keras.optimizers.Optimizer | None,
    gradients: Sequence[jax.Array],
    variables: Sequence[keras.Variable],
) -> list[jax.Array]:
    """Returns gradients of a micro-batch in the form in which they are accumulated.

    Args:
        optimizer: optimizer of the model; None if it has none.
        gradients: one for each of `variables`.
        variables: some or all of the variables that the optimizer trains.
    """
    while optimizer is not None and not hasattr(optimizer, "prepare"):
        optimizer = getattr(optimizer, "inner_optimizer", None)  # loss scaling wraps one
    if optimizer is None:
        return list(gradients)
    return cast(_Preparing, optimizer).prepare(list(gradients), variables)


def applying_prepared() -> AbstractContextManager[Any]:
    """Returns a context manager for an update whose gradients were all prepared."""
    return _prepared.bound_to(True)


def are_prepared() -> bool:
    """Whether the gradients that an optimizer receives were prepared before they were added up."""
    return _prepared.get()


def apply_gradients(model: keras.Model, state: State, gradients: Gradients) -> State:
    """Runs the optimizer once, with its unscaling, clipping, schedule, weight decay and EMA."""
    trainable, non_trainable, optimizer, metrics = as_lists(state)
    with applying_prepared():
        trainable, optimizer = model.optimizer.stateless_apply(optimizer, gradients, trainable)
    return with_dtypes_of(as_state((trainable, non_trainable, optimizer, metrics)), state)
