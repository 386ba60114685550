"""The checkpoints of a running fit: what happens in its places.

    on_epoch_begin of all callbacks
    begins_epoch           a resumed epoch gets all values here, when its callbacks have begun it
      execution, its callbacks
    between_executions     a checkpoint may be written
      ...
    ends_epoch
      validation, on_epoch_end of all callbacks
    begins_epoch           likewise
    ...
    has_synced, on_train_end, close

At each of these places all callbacks have been called for what has run, and none for what follows.

    when     Saver               options, what processes agree on, the thread that writes
    what     FitParts            the parts of the training
    where    FitData, Progress   the position in the data; epoch, and steps of the training
"""

import logging
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import keras

from millrace._compat.keras_loops import set_first_epoch
from millrace.api.checkpoints.fit_data import position_of, repeat
from millrace.api.checkpoints.fit_parts import FitParts
from millrace.api.checkpoints.forms import check_form
from millrace.api.checkpoints.parts import SavedTraining, newest_training
from millrace.api.checkpoints.progress import Progress
from millrace.api.checkpoints.saver import SaveOptions, Saver
from millrace.base.checkpoints.directory import CheckpointDirectory
from millrace.base.checkpoints.manifest import FIT
from millrace.base.checkpoints.random_state import set_random_state
from millrace.base.interrupts import (
    ImpatientInterrupt,
    TerminatedError,
    at_once,
    terminated_by,
)
from millrace.base.pytrees import ArrayTree
from millrace.errors import CheckpointError
from millrace.programs.feeds.source_position import TrackedBatches
from millrace.run.fit.checkpoint_places import EpochPosition, ResumableEpochs
from millrace.run.fit.controller import Controller
from millrace.run.processes.agreement import process_count

logger = logging.getLogger("millrace")


class FitCheckpoints:
    """Writes the checkpoints of one fit, and lets it continue from the newest one."""

    def __init__(
        self,
        controller: Controller,
        directory: CheckpointDirectory,
        options: SaveOptions,
        callbacks: Sequence[keras.callbacks.Callback],
        epochs: int,
        is_quiet: bool,
    ):
        """Begins, and restores the newest checkpoint.

        Args:
            controller: of the model.
            directory: of the checkpoints.
            options: when they are written.
            callbacks: of the fit, whose training has begun.
            epochs: of the fit: the number with which the last one ends.
            is_quiet: whether the log alone says where it continues.

        Raises:
            CheckpointError: if the newest checkpoint is of another training, or another training
                writes into the directory.
        """
        self._controller, self._model = controller, controller.model
        self._saver = Saver(directory, options, is_quiet)
        self._progress = Progress(controller, directory.path, callbacks, epochs)
        self._parts = FitParts(controller, callbacks, self._progress)
        self._data = self._parts.data
        self._saved: SavedTraining | None = None  # from which the fit continues
        self._is_resumed = False  # whether all of it has been put back
        self.restore_seconds = 0.0
        self.blocked_seconds = 0.0  # for which the newest checkpoint kept the training waiting
        self._exit = ExitStack()
        unfinished = ", ".join(each.name for each in directory.remains() if ".partial" in each.name)
        try:
            if self._saver.writes:
                self._exit.enter_context(directory.locked())
            self._restore(unfinished)
            self._termination = self._exit.enter_context(
                terminated_by(options.deadline_seconds, is_agreed=process_count() > 1)
            )
        except BaseException:
            self._exit.close()
            raise

    def _restore(self, unfinished: str) -> None:
        begin, where = time.perf_counter(), self._saver.directory.path
        saved = newest_training(self._saver.directory, FIT, check_form)
        if saved is None:
            ended = f": a process ended while it wrote {unfinished}" if unfinished else ""
            self._saver.say(f"No complete checkpoint in {where}{ended}. Training begins at step 0.")
            return
        manifest, progress = saved.checkpoint.manifest, self._progress
        progress.take_up(saved.values["progress"], manifest.step)
        self._saver.begin(progress.steps_before)
        if progress.is_after:
            return
        if progress.is_before:
            progress.is_last = True
            set_first_epoch(self._model, progress.last_epoch)
            self._parts.model.put_weights_if_same(saved.values["model"])
            self._saver.say(
                f"Fit {progress.fit} with checkpoints in {where} had ended, and runs no epoch. Fit "
                f"{saved.values['progress']['fit']} continues."
            )
            return
        self._parts.begin_from(saved)
        self._saved = saved
        is_stopped = saved.values["progress"]["stopped"]
        first = progress.last_epoch if is_stopped else manifest.epoch
        set_first_epoch(self._model, first or None)  # Keras takes 0 for none
        self.restore_seconds = time.perf_counter() - begin
        found = f"epoch {manifest.epoch + 1}, after {manifest.epoch_step} of its steps"
        if is_stopped or manifest.epoch >= progress.last_epoch:
            why = "a callback had stopped it" if is_stopped else "it had ended"
            found = f"{why} after {manifest.epoch} epochs, and no epoch is run"
        path = saved.checkpoint.path
        self._saver.say(
            f"Continues from {path}: {found}. Restored in {self.restore_seconds:.2f} s."
        )

    # Places of a fit.

    def on_epoch_begin(self, epoch: int) -> None:
        """Takes the number of the epoch that begins, from 0."""
        self._progress.epoch = epoch

    def begins_epoch(self, epochs: ResumableEpochs) -> None:
        """Restores an epoch that is resumed, or writes a checkpoint of those before."""
        data = self._data
        data.epochs = epochs
        if self._saved is not None and not self._is_resumed:
            self._resume(epochs, self._saved)
            return
        is_first = data.position is None
        self._progress.steps_before += data.epoch_step
        self._parts.ended = {}
        if epochs.begins_pass:
            data.begins_pass()
        each_epoch = self._saver.options.each_epoch
        self._visit(epochs.position(0), is_due=not is_first and each_epoch)

    def between_executions(self, epochs: ResumableEpochs, epoch_step: int) -> None:
        """Writes a checkpoint that is due."""
        self._visit(epochs.position(epoch_step))

    def ends_epoch(self, epochs: ResumableEpochs, epoch_step: int) -> None:
        """Remembers what the validation changes."""
        self._data.position = position = epochs.position(epoch_step)
        self._parts.note_ended(getattr(self._controller.functions.running, "logs", None))
        self._visit(position, may_save=False)

    def on_epoch_end(self, epoch: int) -> None:
        """After an epoch: from now on Keras may write the last values back to the variables."""
        is_stopped = bool(self._model.stop_training)
        self._progress.is_last = epoch + 1 >= self._progress.last_epoch or is_stopped

    def has_synced(self) -> None:
        """Takes the values after the last step, before Keras puts averages into the weights."""
        self._parts.validation.count()
        # After an interrupt, values are synced once more: the averages are in the weights then.
        is_end = not self._parts.end if _is_saved(sys.exception()) else self._progress.is_last
        if is_end and self._data.position is not None:
            self._parts.note_end()

    def on_train_end(self) -> None:
        """After the fit: writes the last checkpoint."""
        data, parts, progress, saved = self._data, self._parts, self._progress, self._saved
        if parts.end and data.position is not None and data.epochs is not None:
            progress.steps_before += data.epoch_step
            data.position = data.epochs.next_position()
            progress.epoch, parts.ended = progress.epoch + 1, {}
            if not data.position.pass_step:
                data.begins_pass()
            progress.is_stopped = progress.epoch < progress.last_epoch
            self._write(parts.values())
        elif saved is not None:  # no epoch was left
            parts.callbacks.set(saved.values["callbacks"], resets=False)
            set_random_state(saved.values["data"]["random"])  # for the next call of fit
        data.position = None
        progress.ends()

    def has_run(self, steps: int | None) -> None:
        """Notes the place after an execution: one of its callbacks may end the training."""
        data = self._data
        if steps is None or data.position is None or data.epochs is None:
            data.position = None
        elif steps:
            data.position = data.epochs.position(data.epoch_step + steps)

    def close(self, error: BaseException | None) -> None:
        """Saves a fit that was interrupted, and waits for the writer.

        Raises:
            CheckpointError: if a checkpoint could not be written.
        """
        set_first_epoch(self._model, None)
        try:
            if _is_saved(error):
                with at_once():  # another Ctrl-C ends it
                    self._save_interrupted()
            self._saver.writer.wait()
        except CheckpointError as failure:
            if error is None:
                raise
            logger.error("%s", failure)  # the training has an error of its own
        finally:
            self._exit.close()

    def _save_interrupted(self) -> None:
        if self._data.position is None or (self._saved is not None and not self._is_resumed):
            return
        self._write(self._parts.values())
        self._saver.writer.wait()
        self._saver.say_saved(self._parts.step)

    def _resume(self, epochs: ResumableEpochs, saved: SavedTraining) -> None:
        step, position = saved.checkpoint.manifest.step, position_of(saved.values["data"])
        self._progress.steps_before = step - position.epoch_step
        self._saver.begin(step)
        set_first_epoch(self._model, None)
        self._parts.restore(saved)
        self._is_resumed = True
        epochs.resume(position)
        self._data.position = position

    # Data that is drawn again.

    def logs_of_whole_epoch(self) -> ArrayTree:
        """Returns the logs of a resumed epoch that has no steps left; None for any other."""
        ended = self._parts.ended
        return ended["ended"]["logs"] if ended else None

    def has_drawn_order(self) -> None:
        """Sets the states at the position."""
        self._data.has_drawn_order()

    def skips(self, source: TrackedBatches, steps: int, places: Sequence[int] = ()) -> None:
        """Draws and drops the batches of a pass that were trained before.

        Raises:
            CheckpointError: if there are fewer.
        """
        with self._nothing_to_save_on_error():
            if not self._data.skip(source, steps, places):
                raise CheckpointError(
                    f"The data ends after {source.drawn} batches, and {steps} were trained before "
                    f"the checkpoint in {self._saver.directory.path}. Call fit with the same data."
                )

    def repeats_pass(self, source: TrackedBatches, asked: int) -> None:
        """Draws and drops the batches of a pass that is over."""
        with self._nothing_to_save_on_error():
            repeat(source, asked)

    def begins_validation(self, epochs: ResumableEpochs) -> None:
        """Draws again what was drawn before the checkpoint."""
        self._parts.validation.begins(epochs)

    @contextmanager
    def _nothing_to_save_on_error(self) -> Iterator[None]:
        """Surrounds batches that are drawn again: after an error, the data is somewhere else."""
        try:
            yield
        except BaseException:
            self._data.position = None
            raise

    # Saving.

    def _visit(self, position: EpochPosition, may_save: bool = True, is_due: bool = False) -> None:
        """Saves the training at a place between two executions, if that is due."""
        saver, parts = self._saver, self._parts
        self._data.position = position
        signal = saver.agree(self._termination.signal)
        if may_save:
            is_due |= saver.is_due(parts.step)
        is_leaving = bool(signal) and process_count() > 1  # one process saves where it ends
        if (is_leaving or is_due) and not saver.postpones(parts.step):
            begin = time.perf_counter()
            saver.writer.wait()
            values = parts.values()
            self.blocked_seconds = time.perf_counter() - begin
            self._write(values)
        if is_leaving:
            saver.writer.wait()
            saver.say_saved(parts.step)
            self._data.position = None
            self._termination.leave(signal)
        saver.writer.check()

    def _write(self, values: Mapping[str, Any]) -> None:
        if self._data.position is not None:
            self._saver.write(lambda: self._parts.snapshot(values))


def _is_saved(error: BaseException | None) -> bool:
    """Whether a training that ends by an error is saved then: after Ctrl-C or SIGTERM."""
    is_asked = isinstance(error, KeyboardInterrupt | TerminatedError)
    return is_asked and process_count() == 1 and not isinstance(error, ImpatientInterrupt)
