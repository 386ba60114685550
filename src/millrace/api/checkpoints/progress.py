"""The calls of fit that write into one directory, so that a script continues the right one.

    model.fit(x, y, epochs=5, callbacks=[checkpoint])      call 1
    model.compile("sgd", "mse")
    model.fit(x, y, epochs=20, callbacks=[checkpoint])     call 2

If the process dies in call 2, the next one runs no epoch in call 1, which returns the history that
it had, and continues in call 2. Calls are counted for each model: another one begins with call 1,
as the same script in another process.
"""

import os
import pathlib
import weakref
from collections.abc import Sequence
from typing import Any

import keras

from millrace.base.checkpoints.plain_values import copied
from millrace.run.fit.controller import Controller

_HISTORY = ("history", "epoch")  # attributes of the callback of Keras that a fit returns

# Values of these, of calls that have ended, of the models of this process, by directory.
_ended: "weakref.WeakKeyDictionary[Controller, dict[str, list[dict[str, Any]]]]" = (
    weakref.WeakKeyDictionary()
)


class Progress:
    """The number of a call of fit and of its epoch, and the steps and histories before them."""

    def __init__(
        self,
        controller: Controller,
        directory: pathlib.Path,
        callbacks: Sequence[keras.callbacks.Callback],
        last_epoch: int,
    ):
        key = os.path.realpath(directory)
        self._histories = _ended.setdefault(controller, {}).setdefault(key, [])
        self._owner = next((c for c in callbacks if isinstance(c, keras.callbacks.History)), None)
        self._past: dict[str, Any] | None = None  # of this call, if it had ended before
        self.fit = len(self._histories) + 1
        self._before = 0  # steps of earlier calls
        self.steps_before = 0  # steps of the training before the running epoch
        self.epoch, self.last_epoch = 0, last_epoch  # the running one; the number of the end
        self.is_last = False  # whether no epoch follows
        self.is_stopped = False  # whether a callback has ended this one
        self.is_before = False  # whether this call had ended when the checkpoint was written
        self.is_after = False  # whether the checkpoint is of an earlier call of this process

    def get(self) -> dict[str, Any]:
        """Returns the number of the call, and what was before it."""
        return {
            "fit": self.fit,
            "steps_before": self._before,
            "histories": list(self._histories),
            "stopped": self.is_stopped,
        }

    def take_up(self, values: Any, step: int) -> None:
        """Compares this call with that of the newest checkpoint, which has a step."""
        self.is_before = self.fit < values["fit"]
        self.is_after = self.fit > values["fit"]
        self._before = self.steps_before = step if self.is_after else values["steps_before"]
        if self.is_before:
            self._past = values["histories"][self.fit - 1]

    def ends(self) -> None:
        """Counts a call that ends, and gives it the history that it had, if it ran no epoch."""
        history: dict[str, Any] = self._past or {}
        if self._owner is not None:
            vars(self._owner).update(history)  # now: Keras's callback has begun after ours
            history = copied({name: getattr(self._owner, name) for name in _HISTORY})
        self._histories.append(history)
