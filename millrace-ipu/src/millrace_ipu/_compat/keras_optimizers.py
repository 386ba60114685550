"""Keras's optimizers, called as those of Keras 2 were. Checked on keras 3.13.0 and 3.15.1.

`apply_gradients`   took a name after the pairs; optimizers that override it still pass one.
`apply`             got gradients that a strategy had added up.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax
import keras

from millrace.extend import replace
from millrace_ipu._compat.patch_table import APPLY, APPLY_GRADIENTS


def let_names_be_given() -> None:
    """Lets `optimizer.apply_gradients(pairs, name)` ignore the name."""

    def wrapper(original: Callable[..., object]) -> Callable[..., object]:
        def apply_gradients(
            self: keras.optimizers.Optimizer,
            grads_and_vars: Iterable[tuple[jax.Array, keras.Variable]],
            name: str | None = None,
            **others: object,
        ) -> object:
            del name
            return original(self, grads_and_vars, **others)

        return apply_gradients

    replace(APPLY_GRADIENTS, wrapper)


def let_gradients_change(
    change: Callable[
        [keras.optimizers.Optimizer, Iterable[Any]], AbstractContextManager[list[Any]]
    ],
) -> None:
    """Lets optimizers of Keras apply `change(optimizer, gradients)`, which is open meanwhile."""

    def wrapper(original: Callable[..., None]) -> Callable[..., None]:
        def apply(
            self: keras.optimizers.Optimizer,
            grads: Iterable[Any],
            trainable_variables: Sequence[keras.Variable] | None = None,
        ) -> None:
            with change(self, grads) as changed:
                original(self, changed, trainable_variables)

        return apply

    named = [kind for kind in vars(keras.optimizers).values() if isinstance(kind, type)]
    for kind in {owner for each in named for owner in each.__mro__ if "apply" in vars(owner)}:
        replace(APPLY, wrapper, kind, "apply")
