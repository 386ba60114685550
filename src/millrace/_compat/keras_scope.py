"""Private Keras: the scope that variables are read from while a function is traced.

`current_scope`   the stateless scope that variables of this thread are read from.
`stored_value`    what a variable holds outside of every scope; its `value` asks the scope first.
`let_scopes_branch`   `keras.ops.cond` on JAX loses what its branches assign, which optimizers do
                  that scale the loss; nothing public is asked before.
"""

from typing import Any

from keras.src.backend.common.stateless_scope import get_stateless_scope

from millrace._compat.patch_table import COND, COND_OF_OPTIMIZERS
from millrace._compat.patches import replace
from millrace._compat.versions import owners


def current_scope() -> Any:
    """Returns the innermost `keras.StatelessScope` that is entered, None if there is none."""
    return get_stateless_scope()


def stored_value(variable: Any) -> Any:
    """Returns a variable's own array; None if it was created in a scope that is still open."""
    return variable._value


def let_scopes_branch() -> None:
    """Lets a scope that has a method `branch` run the conditionals that Keras runs in it."""

    def wrapper(original: Any) -> Any:
        def cond(pred: Any, true_fn: Any, false_fn: Any) -> Any:
            branch = getattr(get_stateless_scope(), "branch", None)
            if branch is None:
                return original(pred, true_fn, false_fn)
            return branch(original, pred, true_fn, false_fn)

        return cond

    replace(COND, wrapper)
    if len(owners("cond")) > 1:  # else both are one place
        replace(COND_OF_OPTIMIZERS, wrapper)
