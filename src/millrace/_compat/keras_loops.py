"""Private Keras: running loops. Checked on 3.13.0, 3.15.1 and 3.16.0.dev.

Whose loop asks for batches: `fit`, `evaluate` and `predict` look the class of their iterator up in
their module, and do not say for which model it is. So each notes itself while it runs, in its
thread, and the innermost one is the one that asks: a callback of one model may run another model.

    fit         the first iterator is for training; any later one is for its validation data
    evaluate    one iterator, or none where fit has made it
    predict     one iterator

While a loop runs, Keras keeps the state of the model beside the variables:

`map_loop_state`   that state before Keras gives it back to the variables.
`restore_state`    gives the variables values, as if the loop had ended.
`report_logs`      what fit and evaluate report at their end: not always the metrics' own results.
"""

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from millrace._compat.patch_table import EPOCH_ITERATOR, EVALUATE, FIT, PREDICT
from millrace._compat.patches import replace
from millrace._compat.versions import keras_is
from millrace.threads.scoped_value import ScopedValue

Make = Callable[[Any, str, dict[str, Any]], Any | None]
_PATCHES = {"train": FIT, "test": EVALUATE, "predict": PREDICT}


class _Loop:
    """A running fit, evaluate or predict."""

    def __init__(self, model: Any, name: str, iterators: int):
        self.model = model
        self.name = name
        self.iterators = iterators  # that it has asked for


class _Making:
    make: Make | None = None


_innermost = ScopedValue[_Loop | None](None)
_making = _Making()


def set_epoch_iterators(make: Make) -> None:
    """Lets `make` decide what `fit`, `evaluate` and `predict` of models draw from.

    Args:
        make: called with the model, `"train"`, `"test"` or `"predict"`, and the arguments; returns
            an instance of a subclass of `EpochIterator`, or None where Keras's own should be used.
    """
    _making.make = make


def let_loops_ask() -> None:
    """Puts in what `set_epoch_iterators` builds on."""
    replace(EPOCH_ITERATOR, _asking)
    for name, patch in _PATCHES.items():
        replace(patch, lambda original, name=name: _noted(original, name))


def asks_for_nothing(model: Any, loop: str) -> bool:
    """Whether this loop of `model` runs in this thread, and has not asked for its iterator.

    If it draws batches all the same, Keras makes iterators in another way than this module knows.
    """
    running = _innermost.get()
    return (
        running is not None
        and running.model is model
        and running.name == loop
        and not running.iterators
    )


def _asking(original: Any) -> Any:
    signature = inspect.signature(original)

    def epoch_iterator(*args: Any, **kwargs: Any) -> Any:
        made, loop = None, _innermost.get()
        if loop is not None and _making.make is not None:
            # `fit` makes the iterator of its validation data itself.
            name = "test" if loop.name == "train" and loop.iterators else loop.name
            loop.iterators += 1
            made = _making.make(loop.model, name, signature.bind(*args, **kwargs).arguments)
        return original(*args, **kwargs) if made is None else made

    return epoch_iterator


def _noted(original: Any, name: str) -> Any:
    def loop(self: Any, *args: Any, **kwargs: Any) -> Any:
        with _running(self, name):
            return original(self, *args, **kwargs)

    return loop


def _running(model: Any, name: str) -> AbstractContextManager[Any]:
    around = _innermost.get()
    from_fit = around is not None and around.model is model and name == "test"
    made = around.iterators - 1 if from_fit else 0  # type: ignore[union-attr]
    return _innermost.bound_to(_Loop(model, name, max(made, 0)))


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
