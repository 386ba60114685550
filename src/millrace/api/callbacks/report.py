"""The callback that writes the records of one call, and their page."""

import os
from collections.abc import Mapping
from typing import Any

import keras

from millrace.base.arguments import checked
from millrace.base.options import directory_path
from millrace.errors import ModelError
from millrace.programs.plan import Mode
from millrace.run.fit.controller import controller_of
from millrace.tools.recording.call_records import record_call
from millrace.tools.recording.run import open_run


class Report(keras.callbacks.Callback):
    """Writes the records of a call of fit, evaluate or predict into a directory, and their page.

        model.fit(x, y, callbacks=[millrace.callbacks.Report("runs/7")])

    Several calls may use the same directory: their records are added. A strategy that has a
    directory of its own, of `report_dir` or `MILLRACE_REPORT_DIR`, writes there as well.
    """

    # Keras may then hand logs over from a thread of its own, as it does without this callback.
    async_safe = True

    @checked
    def __init__(self, directory: str | os.PathLike[str]):
        """Chooses the directory, which is made when the call begins.

        Args:
            directory: of the records; the page is `report.html` in it.

        Raises:
            OptionError: if it is no path; when the call begins, if it cannot be made.
            ModelError: when the call begins, if the model belongs to no strategy.
        """
        super().__init__()
        self._directory = directory_path("directory", directory)

    def on_train_begin(self, logs: Mapping[str, float] | None = None) -> None:
        """Begins to write the records of a fit."""
        self._begin(Mode.TRAIN)

    def on_test_begin(self, logs: Mapping[str, float] | None = None) -> None:
        """Begins to write the records of an evaluate; those of a validation are written already."""
        self._begin(Mode.TEST)

    def on_predict_begin(self, logs: Mapping[str, float] | None = None) -> None:
        """Begins to write the records of a predict."""
        self._begin(Mode.PREDICT)

    def _begin(self, mode: Mode) -> None:
        model: Any = self.model
        controller = controller_of(model)
        if controller is None:
            raise ModelError(
                "Report writes what a strategy knows of a loop, and model "
                f"{getattr(model, 'name', None)!r} belongs to no strategy. Call "
                "strategy.attach(model), or build it within strategy.scope()."
            )
        record_call(controller, open_run(self._directory), mode, self.params or {})
