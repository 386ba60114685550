"""The states of the callbacks of a fit."""

import logging
from collections.abc import Sequence
from typing import Any

import keras

from millrace.base.checkpoints.object_state import ObjectState
from millrace.errors import CheckpointError

logger = logging.getLogger("millrace")

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
        self._states = [
            (_kind(each), _state_of(each)) for each in callbacks if not isinstance(each, _STATELESS)
        ]
        self._has_warned = False

    def get(self) -> list[Any]:
        """Returns the class and the state of each callback."""
        return [{"kind": kind, "state": state.changes()} for kind, state in self._states]

    def set(self, values: Any, resets: bool = True) -> None:
        """Sets states that were saved, and warns once of callbacks that are new or gone.

        Callbacks are told apart by their class and their order.

        Args:
            values: that were saved.
            resets: whether attributes that had not changed when they were saved get their first
                values, too.
        """
        left = list(values)
        unknown = []
        for kind, state in self._states:
            own = next((each for each in left if each["kind"] == kind), None)
            if own is None:
                unknown.append(kind)
                continue
            left.remove(own)
            state.restore(own["state"], resets)
        for kind in () if self._has_warned else [*unknown, *(each["kind"] for each in left)]:
            logger.warning("The state of callback %s begins anew: it is new, or gone.", kind)
        self._has_warned = True


def _kind(callback: object) -> str:
    kind = type(callback)
    return f"{kind.__module__}.{kind.__qualname__}"


def _state_of(callback: keras.callbacks.Callback) -> ObjectState:
    is_csv = isinstance(callback, keras.callbacks.CSVLogger)
    return _CSVState(callback) if is_csv else ObjectState(callback, by_methods=True)


class _CSVState(ObjectState):
    """A logger, with the content of its file, which a new fit begins again."""

    def changes(self) -> dict[str, Any]:
        """Returns the content of the file, and the attributes that have changed."""
        if not self.owner.csv_file.closed:
            self.owner.csv_file.flush()
        with open(self.owner.filename, newline="") as file:
            return {"text": file.read(), "changes": super().changes()}

    def restore(self, changes: Any, resets: bool = True) -> None:
        """Writes the file again, unless the fit is over."""
        if not isinstance(changes, dict) or not isinstance(changes.get("text"), str):
            raise CheckpointError("The checkpoint holds no content of the file of a CSVLogger.")
        super().restore(changes.get("changes", {}), resets)
        file = self.owner.csv_file
        if file.closed:
            return
        file.seek(0)
        file.truncate()
        file.write(changes["text"])
        file.flush()
        self.owner.append_header = not changes["text"]
