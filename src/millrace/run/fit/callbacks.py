"""The callbacks of a loop, in a list of their own."""

from typing import Any

import keras


def flat_callbacks(callbacks: Any) -> list[keras.callbacks.Callback]:
    """Returns the callbacks in the `callbacks` argument of a loop, however they are nested."""
    if callbacks is None:
        return []
    if isinstance(callbacks, keras.callbacks.CallbackList):
        return list(callbacks.callbacks)
    if isinstance(callbacks, list | tuple):
        return [each for inner in callbacks for each in flat_callbacks(inner)]
    return [callbacks]


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
