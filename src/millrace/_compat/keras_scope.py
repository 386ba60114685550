"""Private Keras: the scope from which variables are read while a function is traced.

`current_scope`   the stateless scope from which this thread reads variables.
`stored_value`    the value of a variable outside of every scope; its `value` asks the scope first.
`let_scopes_branch`   `keras.ops.cond` on JAX loses the assignments of its branches, such as those
                  of optimizers that scale the loss; it has no public hook.
"""

from collections.abc import Callable
from typing import Any

import keras
from jax.typing import ArrayLike
from keras.src.backend.common.stateless_scope import get_stateless_scope

from millrace._compat.patch_table import COND, COND_OF_OPTIMIZERS
from millrace._compat.patches import replace
from millrace._compat.versions import owners


def current_scope() -> Any:
    """Returns the innermost `keras.StatelessScope` that is entered, None if there is none."""
    return get_stateless_scope()


def stored_value(variable: keras.Variable) -> Any:
    """Returns a variable's own array; None if it was created in a scope that is still open."""
    private: Any = variable
    return private._value


def let_scopes_branch() -> None:
    """Lets a scope with a method `branch` run Keras's conditionals inside it."""

    def wrapper(original: Callable[..., object]) -> Callable[..., object]:
        def cond(
            pred: ArrayLike, true_fn: Callable[[], object], false_fn: Callable[[], object]
        ) -> object:
            branch = getattr(get_stateless_scope(), "branch", None)
            if branch is None:
                return original(pred, true_fn, false_fn)
            return branch(original, pred, true_fn, false_fn)

        return cond

    replace(COND, wrapper)
    if len(owners("cond")) > 1:  # else both are one place
        replace(COND_OF_OPTIMIZERS, wrapper)
