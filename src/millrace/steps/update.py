"""One gradient, one change of the weights.

    gradient of a micro-batch -> optimizer.prepare(...) -> accumulated -> the update

An optimizer, or one that it wraps, has a method `prepare(gradients, variables)` for it. What it
does then to gradients that are applied it must leave: `are_prepared` says so.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import keras

from millrace.steps.accumulate import Gradients
from millrace.steps.state import State, as_lists, as_state, with_dtypes_of
from millrace.threads.scoped_value import ScopedValue

_prepared = ScopedValue(False)


def prepared(optimizer: Any, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
    """Returns gradients of a micro-batch as they are to be accumulated.

    Args:
        optimizer: of the model; None if it has none.
        gradients: of the variables.
        variables: some of the optimizer's.
    """
    while optimizer is not None and not hasattr(optimizer, "prepare"):
        optimizer = getattr(optimizer, "inner_optimizer", None)  # loss scaling wraps one
    return list(gradients) if optimizer is None else optimizer.prepare(list(gradients), variables)


def applying_prepared() -> AbstractContextManager[Any]:
    """Surrounds an update by gradients each of which was prepared."""
    return _prepared.bound_to(True)


def are_prepared() -> bool:
    """Whether the gradients that an optimizer is given were prepared before they were added up."""
    return _prepared.get()


def apply_gradients(model: keras.Model, state: State, gradients: Gradients) -> State:
    """Runs the optimizer once: unscaling, clipping, schedule, weight decay and EMA are its own."""
    trainable, non_trainable, optimizer, metrics = as_lists(state)
    with applying_prepared():
        trainable, optimizer = model.optimizer.stateless_apply(optimizer, gradients, trainable)
    return with_dtypes_of(as_state((trainable, non_trainable, optimizer, metrics)), state)
