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
from collections.abc import Mapping
from typing import Any

from millrace.run.fit.controller import Controller

HISTORY = ("history", "epoch")  # attributes of the callback of Keras that a fit returns
FitHistory = dict[str, Any]  # values of these

# Histories of calls that have ended, of the models of this process, by directory.
_ended: "weakref.WeakKeyDictionary[Controller, dict[str, list[FitHistory]]]" = (
    weakref.WeakKeyDictionary()
)


class Progress:
    """The number of a call of fit, and the steps before it."""

    def __init__(self, controller: Controller, directory: pathlib.Path):
        key = os.path.realpath(directory)
        self._histories = _ended.setdefault(controller, {}).setdefault(key, [])
        self.fit = len(self._histories) + 1
        self.steps_before = 0  # of earlier calls
        self.is_before = False  # whether this call had ended when the checkpoint was written
        self.is_after = False  # whether the checkpoint is of an earlier call of this process

    def take_up(self, saved: Mapping[str, Any], step: int) -> None:
        """Compares this call with that of the newest checkpoint.

        Args:
            saved: that `facts` has returned.
            step: of the checkpoint.
        """
        self.is_before = self.fit < saved["fit"]
        self.is_after = self.fit > saved["fit"]
        self.steps_before = step if self.is_after else saved["steps_before"]

    def history(self, saved: Mapping[str, Any]) -> FitHistory:
        """Returns the history of this call, which had ended before the checkpoint."""
        return saved["histories"][self.fit - 1]

    def facts(self) -> dict[str, Any]:
        """Returns what is saved of it."""
        return {
            "fit": self.fit,
            "steps_before": self.steps_before,
            "histories": list(self._histories),
        }

    def ends(self, history: FitHistory) -> None:
        """Counts a call that has ended."""
        self._histories.append(history)
