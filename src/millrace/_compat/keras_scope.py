"""Private Keras: variables carried through a loop, and the state of a running loop.

`current_scope`   the stateless scope that variables of this thread are read from.
`stored_value`    what a variable holds outside of every scope; its `value` asks the scope first.
`let_scopes_branch`   `keras.ops.cond` on JAX loses what its branches assign, which optimizers do
                  that scale the loss; nothing public is asked before.

`restore_state`    the state that Keras keeps beside the variables while a loop runs.
`map_loop_state`   that state before Keras gives it back to the variables.
`report_logs`      what fit and evaluate report at their end: not always the metrics' own results.
"""

from collections.abc import Callable
from typing import Any

from keras.src.backend.common.stateless_scope import get_stateless_scope

from millrace._compat.patch_table import COND, COND_OF_OPTIMIZERS
from millrace._compat.patches import replace
from millrace._compat.versions import keras_is, owners

__all__ = ["current_scope", "let_scopes_branch", "stored_value"]


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


# The method by which Keras brings the values of a running loop back to the variables.
STATE_SYNC = "state_sync" if keras_is("3.16") else "jax_state_sync"
_KEYS = {
    "trainable": "trainable_variables",
    "non_trainable": "non_trainable_variables",
    "optimizer": "optimizer_variables",
    "metric": "metrics_variables",
}


def map_loop_state(model: Any, convert: Callable[[str, Any], Any]) -> None:
    """Replaces the values of a running loop by what `convert` makes of those of each role."""
    state = getattr(model, "_jax_state", None)
    if not state or model._jax_state_synced:
        return
    for role, key in _KEYS.items():
        if state.get(key) is not None:
            state[key] = convert(role, state[key])


def sync_state(model: Any) -> None:
    """Brings the values of a running loop back to the variables."""
    getattr(model, STATE_SYNC)()


def report_logs(model: Any, is_wanted: Callable[[], bool]) -> tuple[str, Callable[[Any], Any]]:
    """Returns the name and the function of an attribute of a model that decides what is reported.

    Keras reads the metrics once more when an epoch ends; where `is_wanted`, the logs of the last
    execution are reported instead.
    """

    def result_or_logs(logs: Any) -> Any:
        if is_wanted() and isinstance(logs, dict):
            return logs
        return type(model)._get_metrics_result_or_logs(model, logs)

    return "_get_metrics_result_or_logs", result_or_logs


def restore_state(model: Any, state: Any) -> None:
    """Gives a model's variables values, as if Keras's loop had ended and put them back.

    While a loop runs its variables hold nothing, and an exception out of the first execution
    leaves them so.
    """
    trainable, non_trainable, *rest = state
    groups = [
        (model.trainable_variables, trainable),
        (model.non_trainable_variables, non_trainable),
    ]
    if len(rest) == 2:
        groups.append((model.optimizer.variables, rest[0]))
    if rest:
        groups.append((model.metrics_variables, rest[-1]))
    for variables, values in groups:
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)
    model._jax_state_synced = True
