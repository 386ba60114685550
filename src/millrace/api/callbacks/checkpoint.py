"""The callback that saves a training, from which the same script continues."""

import os
from collections.abc import Mapping
from typing import Any

import keras

from millrace.api.checkpoints.fit_checkpoints import FitCheckpoints
from millrace.api.checkpoints.saver import SaveOptions
from millrace.base.checkpoints.directory import CheckpointDirectory
from millrace.base.options import directory_path, truth, whole_number
from millrace.errors import ModelError, OptionError
from millrace.run.fit.controller import controller_of
from millrace.run.fit.uncompiled import runs_uncompiled


class Checkpoint(keras.callbacks.Callback):
    """Saves everything that a training needs to continue, and continues from it.

        model.fit(x, y, epochs=90, callbacks=[millrace.callbacks.Checkpoint("runs/7/checkpoints")])

    Run again, the same script continues from the newest complete checkpoint, in the middle of an
    epoch: with weights, optimizer, seeds, metrics, the position in the data, and the states of all
    callbacks. The following losses are bit-identical to those of a training without a break. When
    SIGTERM or Ctrl-C arrives, the training is saved before it ends.
    """

    # Keras may then hand logs over from a thread of its own, as it does without this callback.
    async_safe = True
    begins_last = True  # after the callbacks whose states it restores

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        every_steps: int | None = None,
        every_seconds: float | None = None,
        keep: int | None = 3,
        async_save: bool = True,
        deadline_seconds: float = 30.0,
    ):
        """Chooses the directory, and when checkpoints are written.

        Without `every_steps` and `every_seconds` that is at the end of each epoch. There is always
        one at the end of fit, and none within an execution.

        Args:
            directory: of the checkpoints of one training, made when fit begins. Several calls of
                fit in one script may use it one after the other.
            every_steps: number of steps from one checkpoint to the next.
            every_seconds: seconds from one checkpoint to the next.
            keep: number of newest checkpoints to keep; None keeps all.
            async_save: whether files are written while the training continues. It waits for the
                copy to host memory only. A checkpoint that is due before the one before has been
                written is postponed until then.
            deadline_seconds: seconds from SIGTERM to the end of the process, whether or not the
                training could be saved.

        Raises:
            OptionError: if a value is invalid.
            ModelError: when fit begins, if the model belongs to no strategy, or is not compiled by
                it.
            CheckpointError: when fit begins, if the newest checkpoint is of another training, or
                another training uses the directory; within fit, if a checkpoint cannot be written.
        """
        super().__init__()
        self._directory = directory_path("directory", directory)
        if every_steps is not None:
            whole_number("every_steps", every_steps, 1)
        if keep is not None:
            whole_number("keep", keep, 1)
        if every_seconds is not None:
            _check_seconds("every_seconds", every_seconds)
        _check_seconds("deadline_seconds", deadline_seconds)
        self._keep = keep
        self._options = SaveOptions(
            every_steps=every_steps,
            every_seconds=every_seconds,
            deadline_seconds=deadline_seconds,
            in_thread=truth("async_save", async_save),
        )
        self._checkpoints: FitCheckpoints | None = None

    def on_train_begin(self, logs: Mapping[str, float] | None = None) -> None:
        """Restores the newest checkpoint."""
        model: Any = self.model
        controller = controller_of(model)
        if controller is None or runs_uncompiled(controller.setup):
            why = "belongs to no strategy" if controller is None else "is not compiled"
            raise ModelError(
                f"Checkpoint saves trainings that a strategy runs, and model "
                f"{getattr(model, 'name', None)!r} {why}. Call strategy.attach(model), or build it "
                "within strategy.scope(), without run_eagerly=True or jit_compile=False; or use "
                "keras.callbacks.BackupAndRestore."
            )
        if controller.checkpoints is not None:
            raise OptionError(
                "A fit takes one Checkpoint, and received several. Remove all but one; "
                "keras.callbacks.ModelCheckpoint saves weights to other places."
            )
        self._checkpoints = None
        others = [each for each in controller.callbacks() if each is not self]
        self._checkpoints = controller.checkpoints = FitCheckpoints(
            controller,
            CheckpointDirectory(self._directory, self._keep),
            self._options,
            others,
            int((self.params or {}).get("epochs") or 1),
            not (self.params or {}).get("verbose", 1),
        )

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, float] | None = None) -> None:
        """Takes the number of the epoch."""
        if self._checkpoints is not None:
            self._checkpoints.on_epoch_begin(epoch)

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float] | None = None) -> None:
        """Learns whether the epoch was the last one."""
        if self._checkpoints is not None:
            self._checkpoints.on_epoch_end(epoch)

    def on_train_end(self, logs: Mapping[str, float] | None = None) -> None:
        """Writes the last checkpoint."""
        if self._checkpoints is not None:
            self._checkpoints.on_train_end()


def _check_seconds(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise OptionError(
            f"{name} must be a number of seconds above 0. Received: {value!r} of type "
            f"{type(value).__name__}. Set {name}=60, for example."
        )
