"""Private Keras: running loops. Checked on 3.13.0, 3.15.1 and 3.16.0.dev.

`fit`, `evaluate` and `predict` look up the class of their iterator in their module, and do not pass
the model. So each loop is recorded while it runs, for its thread, and the innermost one is the one
that asks: a callback of one model may run another model.

    fit         the first iterator is for training; any later one is for its validation data
    evaluate    one iterator, or none where fit has made it
    predict     one iterator

While a loop runs, Keras keeps the state of the model beside the variables:

`write_loop_state`  writes that state to the variables.
`restore_state`     writes other values to the variables, as at the end of a loop.
`report_logs`       decides the logs that fit and evaluate report at their end.
"""

import inspect
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any, cast

import keras
from keras.src.utils.python_utils import pythonify_logs

from millrace._compat.patch_table import EPOCH_ITERATOR, EVALUATE, FIT, PREDICT
from millrace._compat.patches import replace, unpatched
from millrace._compat.versions import keras_is
from millrace.base.threads.scoped_value import ScopedValue

Make = Callable[[Any, str, dict[str, Any]], Any | None]
_PATCHES = {"train": FIT, "test": EVALUATE, "predict": PREDICT}


class _Loop:
    """A running fit, evaluate or predict."""

    def __init__(self, model: keras.Model, name: str, iterators: int):
        self.model = model
        self.name = name
        self.iterators = iterators  # made so far


class _EpochIterators:
    make: Make | None = None


_innermost = ScopedValue[_Loop | None](None)
_epoch_iterators = _EpochIterators()


def set_epoch_iterators(make: Make) -> None:
    """Lets `make` provide the epoch iterators of `fit`, `evaluate` and `predict`.

    Args:
        make: called with the model, `"train"`, `"test"` or `"predict"`, and the arguments; returns
            an instance of a subclass of `EpochIterator`, or None where Keras's own should be used.
    """
    _epoch_iterators.make = make


def let_loops_ask() -> None:
    """Puts in the patches on which `set_epoch_iterators` builds."""
    replace(EPOCH_ITERATOR, _asking)
    for name, patch in _PATCHES.items():
        replace(patch, lambda original, name=name: _noted(original, name))


def asks_for_nothing(model: keras.Model, loop: str) -> bool:
    """Whether this loop of `model` runs in this thread, and has not asked for its iterator.

    If it draws batches all the same, Keras makes iterators in a way unknown to this module.
    """
    running = _innermost.get()
    return (
        running is not None
        and running.model is model
        and running.name == loop
        and not running.iterators
    )


def is_stock(loop: Callable[..., object]) -> bool:
    """Whether a `fit`, `evaluate` or `predict` is Keras's own: not a subclass's, nor patched."""
    original = unpatched(loop) if _module(loop) == __name__ else loop
    return _module(original).startswith("keras.")


def _module(function: Any) -> str:
    # Not `__module__`, which functools.wraps copies.
    return getattr(function, "__globals__", {}).get("__name__", "")


def _asking(original: Callable[..., object]) -> Callable[..., object]:
    signature = inspect.signature(original)

    def epoch_iterator(*args: object, **kwargs: object) -> object:
        own, loop, make = None, _innermost.get(), _epoch_iterators.make
        if loop is not None and make is not None:
            # `fit` makes the iterator of its validation data itself.
            name = "test" if loop.name == "train" and loop.iterators else loop.name
            loop.iterators += 1
            given = signature.bind(*args, **kwargs).arguments if args else kwargs
            own = make(loop.model, name, given)
        return original(*args, **kwargs) if own is None else own

    return epoch_iterator


def _noted(original: Callable[..., object], name: str) -> Callable[..., object]:
    def loop(self: keras.Model, *args: object, **kwargs: object) -> object:
        with _running(self, name):
            return original(self, *args, **kwargs)

    return loop


def _running(model: keras.Model, name: str) -> AbstractContextManager[Any]:
    outer, iterators = _innermost.get(), 0
    if outer is not None and outer.model is model and name == "test":  # the validation of fit
        iterators = max(outer.iterators - 1, 0)
    return _innermost.bound_to(_Loop(model, name, iterators))


# The method by which Keras writes the values of a running loop back to the variables.
# Whether train_on_batch and test_on_batch report their batch alone, not all since the last reset.
REPORTS_BATCH = keras_is("3.15")
STATE_SYNC = "state_sync" if keras_is("3.16") else "jax_state_sync"
_KEYS = {
    "trainable": "trainable_variables",
    "non_trainable": "non_trainable_variables",
    "optimizer": "optimizer_variables",
    "metric": "metrics_variables",
}


def write_loop_state(model: keras.Model, convert: Callable[[str, Iterable[Any]], Any]) -> None:
    """Writes the values of a running loop to the variables, as Keras does.

    Args:
        model: whose loop runs, or has ended.
        convert: returns the values of a role in the form that variables hold.
    """
    private: Any = model
    state = getattr(private, "_jax_state", None)
    if state and not private._jax_state_synced:
        for role, key in _KEYS.items():
            if state.get(key):
                put_values(variables_of(model, role), convert(role, state[key]))
        private._jax_state_synced = True
    getattr(type(model), STATE_SYNC)(model)  # which is the user's, perhaps


def variables_of(model: keras.Model, role: str) -> list[keras.Variable]:
    """Returns the variables of a role, in the order of a running loop's state."""
    if role == "optimizer":
        return list(getattr(getattr(model, "optimizer", None), "variables", ()))
    # Those of each replica are of the same variables.
    return getattr(model, _KEYS["metric" if role == "metric_parts" else role])


def put_values(variables: Iterable[keras.Variable], values: Iterable[Any]) -> None:
    """Assigns values to variables, outside of all scopes.

    `Variable.assign` takes 5 us, most of it to find that there is nothing to convert: in an epoch
    of one small batch, that would be a tenth of the time.
    """
    for variable, value in zip(variables, values, strict=True):
        private: Any = variable
        is_plain = type(variable) is keras.Variable and private._layout is None
        if is_plain and value.dtype == private._dtype and value.shape == private._shape:
            private._value = value
        else:
            variable.assign(value)


def loop_state(model: keras.Model) -> dict[str, list[Any]] | None:
    """Returns the values of a running loop, role by role; None if the variables hold them."""
    private: Any = model
    state = getattr(private, "_jax_state", None)
    if not state or private._jax_state_synced:
        return None
    return {role: list(state[key]) for role, key in _KEYS.items() if state.get(key) is not None}


def set_first_epoch(model: keras.Model, epoch: int | None) -> None:
    """Lets the fit that begins start with another epoch, from 0; None takes that back."""
    private: Any = model
    private._initial_epoch = epoch


def validation_epochs(model: keras.Model) -> Any:
    """Returns the epoch iterator of the validation of the running fit; None until it has begun."""
    return getattr(model, "_eval_epoch_iterator", None)


def sync_state(model: keras.Model) -> None:
    """Writes the values of a running loop back to the variables."""
    getattr(model, STATE_SYNC)()


def report_logs(
    model: keras.Model, choose: Callable[[object, Callable[[], object]], object]
) -> tuple[str, Callable[[object], object]]:
    """Returns the name and the value of an attribute of a model that decides the reported logs.

    Args:
        model: whose loops report them.
        choose: is given the logs of the last execution, and a function that computes those that
            Keras reports, which reads the metrics once more.
    """
    private: Any = model

    def result_or_logs(logs: object) -> object:
        chosen = choose(logs, lambda: type(private)._get_metrics_result_or_logs(private, logs))
        # From 3.14 on, Keras makes Python's numbers of what this returns.
        return chosen if keras_is("3.14") else pythonify_logs(cast(Any, chosen))

    return "_get_metrics_result_or_logs", result_or_logs


def reported_logs(model: keras.Model, logs: Any, as_dict: bool) -> Any:
    """Returns the logs of a call as Keras reports them: Python's numbers, by name or in order."""
    numbers = pythonify_logs(logs)
    private: Any = model
    return numbers if as_dict else private._flatten_metrics_in_order(numbers)


def first_epoch(model: keras.Model, initial_epoch: int) -> int:
    """Returns the epoch, from 0, with which a fit begins.

    `BackupAndRestore` continues with one of its own.
    """
    return getattr(model, "_initial_epoch", None) or initial_epoch


def restore_state(model: keras.Model, state: Iterable[Iterable[Any]]) -> None:
    """Writes a state to a model's variables, as Keras does at the end of a loop.

    While a loop runs, the variables hold no values, and an exception in the first execution would
    leave them without.
    """
    private: Any = model
    trainable, non_trainable, *others = state
    put_values(model.trainable_variables, trainable)
    put_values(model.non_trainable_variables, non_trainable)
    if len(others) == 2:
        put_values(private.optimizer.variables, others[0])
    if others:
        put_values(model.metrics_variables, others[-1])
    private._jax_state_synced = True
