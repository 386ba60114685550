"""Keras's optimizers, called as those of Keras 2 were. Checked on 3.13.0 and 3.15.1.

`apply_gradients`   took a name after the pairs, which optimizers that override it still hand on.
"""

import functools
from typing import Any

import keras

from millrace._compat.needed import wrap

__all__ = ["let_names_be_given"]


@functools.cache
def let_names_be_given() -> None:
    """Lets `optimizer.apply_gradients(pairs, name)` ignore the name."""

    def wrapper(original: Any) -> Any:
        def apply_gradients(
            self: Any, grads_and_vars: Any, name: str | None = None, **others: Any
        ) -> Any:
            del name
            return original(self, grads_and_vars, **others)

        return apply_gradients

    wrap(keras.optimizers.Optimizer, "apply_gradients", wrapper)
