"""The states of the callbacks of a fit."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras

from millrace.base.checkpoints.object_state import ObjectState
from millrace.errors import CheckpointError

_STATELESS = (keras.callbacks.ProgbarLogger,)


class CallbackStates:
    """The callbacks of a fit that has begun, and what has changed in them since.

    A callback with `get_state()` and `set_state(state)` is saved by these: plain values and arrays.
    Of any other the attributes are saved that training changes.
    """

    def __init__(self, callbacks: Sequence[keras.callbacks.Callback]):
        """Begins.

        Args:
            callbacks: all of which have had their `on_train_begin`.
        """
        self._callbacks = [each for each in callbacks if not isinstance(each, _STATELESS)]
        self._states = [ObjectState(each) for each in self._callbacks]

    def get(self) -> list[Any]:
        """Returns the state of each callback."""
        return [
            {"kind": _kind(callback), "state": self._state(callback, state)}
            for callback, state in zip(self._callbacks, self._states, strict=True)
        ]

    def set(self, saved: Sequence[Mapping[str, Any]], resets: bool = True) -> list[str]:
        """Sets states that `get` has returned.

        Callbacks are told apart by their class and their order.

        Args:
            saved: the states.
            resets: whether attributes that had not changed when they were saved get their first
                values, too.

        Returns:
            The classes of callbacks whose state could not be set, since they are new or gone.
        """
        left = list(saved)
        unknown = []
        for callback, state in zip(self._callbacks, self._states, strict=True):
            own = next((each for each in left if each["kind"] == _kind(callback)), None)
            if own is None:
                unknown.append(_kind(callback))
                continue
            left.remove(own)
            if isinstance(callback, keras.callbacks.CSVLogger):
                _set_csv(callback, state, own["state"], resets)
            elif _has_methods(callback):
                _as_any(callback).set_state(own["state"])
            else:
                state.restore(own["state"], resets)
        return unknown + [each["kind"] for each in left]

    def _state(self, callback: Any, state: ObjectState) -> Any:
        if isinstance(callback, keras.callbacks.CSVLogger):
            return _csv(callback, state)
        return callback.get_state() if _has_methods(callback) else state.changes()


def _as_any(callback: Any) -> Any:
    return callback


def _has_methods(callback: Any) -> bool:
    return hasattr(callback, "get_state") and hasattr(callback, "set_state")


def _kind(callback: object) -> str:
    kind = type(callback)
    return f"{kind.__module__}.{kind.__qualname__}"


def _csv(callback: Any, state: ObjectState) -> dict[str, Any]:
    """Returns the content of a logger's file, which a new fit begins again."""
    if not callback.csv_file.closed:
        callback.csv_file.flush()
    with open(callback.filename, newline="") as file:
        return {"text": file.read(), "changes": state.changes()}


def _set_csv(callback: Any, state: ObjectState, saved: Mapping[str, Any], resets: bool) -> None:
    if not isinstance(saved, dict) or not isinstance(saved.get("text"), str):
        raise CheckpointError("The checkpoint holds no content of the file of a CSVLogger.")
    state.restore(saved.get("changes", {}), resets)
    file = callback.csv_file
    if file.closed:  # the fit is over
        return
    file.seek(0)
    file.truncate()
    file.write(saved["text"])
    file.flush()
    callback.append_header = not saved["text"]
