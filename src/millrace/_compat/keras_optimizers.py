"""Keras's optimizers, called as those of Keras 2 were. Checked on 3.13.0 and 3.15.1.

`apply_gradients`   took a name after the pairs, which optimizers that override it still hand on.
`__init__`          makes variables with values of their own, which no stateless scope lets be made.
"""

from typing import Any

import jax
from jax.core import Tracer
from keras.src.backend.common.global_state import get_global_attribute, set_global_attribute

from millrace._compat.patch_table import APPLY_GRADIENTS, OPTIMIZER_INIT
from millrace._compat.patches import replace
from millrace.errors import LoopError

__all__ = ["let_names_be_given", "let_optimizers_be_made"]

_SCOPE = "stateless_scope"


def let_names_be_given() -> None:
    """Lets `optimizer.apply_gradients(pairs, name)` ignore the name."""

    def wrapper(original: Any) -> Any:
        def apply_gradients(
            self: Any, grads_and_vars: Any, name: str | None = None, **others: Any
        ) -> Any:
            del name
            return original(self, grads_and_vars, **others)

        return apply_gradients

    replace(APPLY_GRADIENTS, wrapper)


def let_optimizers_be_made() -> None:
    """Lets optimizers be made in functions that are traced, with values at once."""

    def wrapper(original: Any) -> Any:
        def make(self: Any, *args: Any, **kwargs: Any) -> None:
            scope = get_global_attribute(_SCOPE)
            if scope is None:
                return original(self, *args, **kwargs)
            _check_rate(self, *args, **kwargs)
            set_global_attribute(_SCOPE, None)
            try:
                with jax.ensure_compile_time_eval():
                    original(self, *args, **kwargs)
            finally:
                set_global_attribute(_SCOPE, scope)

        return make

    replace(OPTIMIZER_INIT, wrapper)


def _check_rate(optimizer: Any, learning_rate: Any = None, *_: Any, **__: Any) -> None:
    if isinstance(learning_rate, Tracer):
        raise LoopError(
            f"{type(optimizer).__name__} was made with a learning rate that only the device knows, "
            f"{learning_rate}. Make it with a number, and assign optimizer.learning_rate before a "
            "run that is to have another one; or multiply the loss by the value."
        )
