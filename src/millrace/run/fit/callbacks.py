"""The callbacks of a loop, in a list of their own.

EpochCallbackList     where no callback looks at batches                 here
StepCallbackList      where callbacks look at each step of an execution  asynchronous.py
Keras's own list      otherwise

`callback_list` in asynchronous.py chooses.
"""

from collections.abc import Iterable
from typing import Any

import keras

_OF_BATCHES = [
    f"on_{mode}batch_{when}"
    for mode in ("", "train_", "test_", "predict_")
    for when in ("begin", "end")
]
_EARLY = ["set_model", "set_params"]  # Keras calls them once the data is known and the model built


class LoopCallbackList(keras.callbacks.CallbackList):
    """A list that is made before the data is known."""

    _knows_steps = False

    def tell_steps(self, steps: int | None) -> None:
        """Tells the callbacks how many steps an epoch has; later calls, of validation, do not."""
        if not self._knows_steps:
            self._knows_steps = True
            self.set_params({**self.params, "steps": steps})


class EpochCallbackList(LoopCallbackList):
    """Calls callbacks that do not look at batches, and nothing for each batch.

    Keras hands the logs of each batch to another thread, which waits for the device and converts
    them, whether a callback wants them or not: half of the time of a loop of short steps. Each
    `evaluate` or `predict` starts such a thread anew.
    """

    def on_train_batch_begin(self, batch: int, logs: object = None) -> None:
        """Calls nothing."""

    on_train_batch_end = on_test_batch_begin = on_test_batch_end = on_train_batch_begin
    on_predict_batch_begin = on_predict_batch_end = on_train_batch_begin


def looks_at_no_batch(callbacks: Iterable[object]) -> bool:
    """Whether an `EpochCallbackList`, made before the data is known, can call these callbacks."""
    stock = keras.callbacks.Callback
    return all(
        isinstance(each, stock)
        and all(_function(each, name) is getattr(stock, name) for name in _OF_BATCHES + _EARLY)
        for each in callbacks
    )


def _function(callback: object, name: str) -> object:
    """Returns the function of a hook, which may be an attribute of the callback itself."""
    return getattr(getattr(callback, name), "__func__", None)


def flat_callbacks(callbacks: Any) -> list[keras.callbacks.Callback]:
    """Returns the callbacks in the `callbacks` argument of a loop, however they are nested."""
    if callbacks is None:
        return []
    if isinstance(callbacks, keras.callbacks.CallbackList):
        return list(callbacks.callbacks)
    if isinstance(callbacks, list | tuple):
        return [each for inner in callbacks for each in flat_callbacks(inner)]
    return [callbacks]


def take_outputs(callbacks: Any) -> bool:
    """Whether a callback takes the outputs of each batch of `predict`, which then gathers none."""
    return any(getattr(each, "takes_outputs", False) for each in flat_callbacks(callbacks))


def last_ones_last(callbacks: Any) -> Any:
    """Returns the `callbacks` argument of a loop, with those last that begin after all others.

    A callback with a true attribute `begins_last` restores the states of the others, which they
    reset when they begin.
    """
    flat = [] if isinstance(callbacks, keras.callbacks.CallbackList) else flat_callbacks(callbacks)
    if not any(_begins_last(each) for each in flat):
        return callbacks
    return sorted(flat, key=_begins_last)


def _begins_last(callback: object) -> bool:
    return bool(getattr(callback, "begins_last", False))
