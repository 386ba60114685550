"""The checkpoints of a running fit: their times, their contents, and the restart from one.

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
"""

import logging
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from typing import Any

import jax
import keras
import numpy as np

from millrace._compat.keras_loops import set_first_epoch, validation_epochs
from millrace._compat.keras_positions import goes_on
from millrace.base.checkpoints.directory import CheckpointDirectory
from millrace.base.checkpoints.plain_values import copied
from millrace.base.checkpoints.random_state import set_random_state
from millrace.base.checkpoints.stored import Snapshot
from millrace.base.checkpoints.writer import CheckpointWriter
from millrace.base.interrupts import (
    ImpatientInterrupt,
    TerminatedError,
    at_once,
    terminated_by,
)
from millrace.base.pytrees import ArrayTree
from millrace.errors import CheckpointError
from millrace.programs.feeds.merged_batches import inner_adapter
from millrace.programs.feeds.source_position import TrackedBatches
from millrace.run.fit.checkpoint_places import EpochPosition, ResumableEpochs
from millrace.run.fit.controller import Controller
from millrace.run.processes.agreement import process_count
from millrace.run.resuming.callback_states import CallbackStates
from millrace.run.resuming.model_values import (
    METRIC_PARTS,
    facts_of,
    options_of,
    put_values,
    put_weights_if_same,
    values_of,
)
from millrace.run.resuming.pass_states import PassStates
from millrace.run.resuming.progress import HISTORY, FitHistory, Progress
from millrace.run.resuming.restoring import (
    FIT,
    SavedFit,
    check_continues,
    newest_fit,
    note_options,
)
from millrace.run.resuming.schedule import SaveOptions, SaveSchedule

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
        self._controller = controller
        self._directory = directory
        self._options = options
        self._last_epoch = epochs
        self._is_quiet = is_quiet
        self._schedule = SaveSchedule(options)
        self._writer = CheckpointWriter(directory, options.in_thread)
        self._progress = Progress(controller, directory.path)
        self._callbacks = CallbackStates(callbacks)
        kept = [each for each in callbacks if isinstance(each, keras.callbacks.History)]
        self._history = kept[0] if kept else None
        self._iterator = controller.feeds.training
        self._passes = PassStates(inner_adapter(getattr(self._iterator, "data_adapter", None)))
        self._update_options = options_of(controller)
        self._data = {} if self._iterator is None else self._iterator.facts()
        self._facts = facts_of(controller.model)  # now: a loop takes the values out of variables
        self._saved: SavedFit | None = None  # is still to be restored
        self._past: FitHistory | None = None  # of this call, if it had ended before the checkpoint
        self._position: EpochPosition | None = None  # None while there is nothing to save
        self._steps_before = 0  # steps of the training before the running epoch
        self._validated: list[int] = []  # batches of each validation so far
        self._validated_before: list[int] = []  # before the checkpoint, until they are drawn again
        self._epoch = 0
        self._is_postponed = False  # whether a checkpoint is due that waits for the one before
        self._has_postponed = False  # whether that was said
        self._ended: dict[str, Any] | None = None  # of an epoch that has only its validation left
        self._ended_data: dict[str, Any] = {}  # likewise: states of generators and data set
        self._is_last = False  # whether no epoch follows
        self._end: tuple[dict[str, Any], Any] | None = None  # of model and callbacks, at the end
        self.resumed: SavedFit | None = None
        self._assigned: dict[int, object] = {}  # values of variables after a restoration
        self.restore_seconds = 0.0
        self.blocked_seconds = 0.0  # for which the newest checkpoint kept the training waiting
        self._exit = ExitStack()
        unfinished = ", ".join(each.name for each in directory.remains() if ".partial" in each.name)
        try:
            if self._schedule.writes:
                self._exit.enter_context(directory.locked())
            self._restore(unfinished)
            self._termination = self._exit.enter_context(
                terminated_by(options.deadline_seconds, is_agreed=process_count() > 1)
            )
        except BaseException:
            self._exit.close()
            raise

    def _restore(self, unfinished: str) -> None:
        begin, where = time.perf_counter(), self._directory.path
        saved = newest_fit(self._directory)
        if saved is None:
            ended = f": a process ended while it wrote {unfinished}" if unfinished else ""
            self._say(f"No complete checkpoint in {where}{ended}. Training begins at step 0.")
            return
        manifest, model = saved.checkpoint.manifest, self._controller.model
        self._progress.take_up(saved.others["progress"], manifest.step)
        self._steps_before = self._progress.steps_before
        self._schedule.begin(self._steps_before)
        if self._progress.is_after:
            return
        if self._progress.is_before:
            self._is_last = True
            set_first_epoch(model, self._last_epoch)
            put_weights_if_same(saved.others["facts"], saved.model, model)
            self._past = self._progress.history(saved.others["progress"])
            self._say(
                f"Fit {self._progress.fit} with checkpoints in {where} had ended, and runs no "
                f"epoch. Fit {saved.others['progress']['fit']} continues."
            )
            return
        check_continues(saved, self._controller, self._data)
        note_options(saved.others["options"], self._update_options)
        self._controller.setup.stages.resume(saved.others.get("stages"))
        self._assigned = put_values(model, saved.model)
        for kind in self._callbacks.set(saved.others["callbacks"]):
            logger.warning("The state of callback %s begins anew: it is new, or gone.", kind)
        self.resumed = self._saved = saved
        is_stopped = saved.others["stopped"]
        # Keras takes 0 for none.
        set_first_epoch(model, (self._last_epoch if is_stopped else saved.epoch) or None)
        self.restore_seconds = time.perf_counter() - begin
        place = f"epoch {saved.epoch + 1}, after {manifest.epoch_step} of its steps"
        if is_stopped or saved.epoch >= self._last_epoch:
            why = "a callback had stopped it" if is_stopped else "it had ended"
            place = f"{why} after {saved.epoch} epochs, and no epoch is run"
        path = saved.checkpoint.path
        self._say(f"Continues from {path}: {place}. Restored in {self.restore_seconds:.2f} s.")

    def _say(self, line: str, level: int = logging.INFO) -> None:
        """Logs a line, and prints it for those who do not read that level of the log."""
        logger.log(level, "%s", line)
        if self._schedule.writes and not (self._is_quiet or logger.isEnabledFor(level)):
            print(line, file=sys.stderr)

    # Places of a fit.

    def on_epoch_begin(self, epoch: int) -> None:
        """Takes the number of the epoch that begins, from 0."""
        self._epoch = epoch

    def begins_epoch(self, epochs: ResumableEpochs) -> None:
        """Restores an epoch that is resumed, or writes a checkpoint of those before."""
        self._iterator, self._passes.adapter = epochs, inner_adapter(epochs.data_adapter)
        saved, self._saved = self._saved, None
        if saved is not None:
            self._resume(epochs, saved)
            return
        is_first = self._position is None
        if not is_first:
            self._steps_before += self._position.epoch_step if self._position else 0
        self._ended = None
        if epochs.begins_pass:
            self._passes.begins()
        self._visit(epochs.position(0), is_due=not is_first and self._options.each_epoch)

    def between_executions(self, epochs: ResumableEpochs, epoch_step: int) -> None:
        """After an execution: writes a checkpoint that is due."""
        self._visit(epochs.position(epoch_step))

    def ends_epoch(self, epochs: ResumableEpochs, epoch_step: int) -> None:
        """After the last execution of an epoch: remembers what its validation changes."""
        self._position = epochs.position(epoch_step)
        if self._ended is not None:  # resumed: its callbacks have seen its last execution before
            self._callbacks.set(self._ended["callbacks"])
        running = self._controller.functions.running
        logs = self._ended["logs"] if self._ended else getattr(running, "logs", None)
        self._ended = {
            "logs": jax.tree.map(np.asarray, logs),
            "metrics": values_of(self._controller, ("metric",)),
            "callbacks": self._callbacks.get(),
            "validated": self._count_validated()[:],
        }
        self._ended_data = self._passes.values(self._position)
        self._visit(self._position, may_save=False)

    def on_epoch_end(self, epoch: int) -> None:
        """After an epoch: from now on Keras may write the last values back to the variables."""
        self._is_last = epoch + 1 >= self._last_epoch or bool(self._controller.model.stop_training)

    def has_synced(self) -> None:
        """Takes the values after the last step, before Keras puts averages into the weights."""
        self._count_validated()
        # After an interrupt, values are synced once more: the averages are in the weights then.
        is_end = self._end is None if _is_saved(sys.exception()) else self._is_last
        if is_end and self._position is not None:
            self._end = values_of(self._controller), copied(self._callbacks.get())

    def on_train_end(self) -> None:
        """After the fit: writes the last checkpoint."""
        epochs = self._iterator
        if self._end is not None and self._position is not None and epochs is not None:
            self._steps_before += self._position.epoch_step
            self._position = epochs.next_position()
            self._epoch, self._ended = self._epoch + 1, None
            if not self._position.pass_step:
                self._passes.begins()
            self._write(*self._end, is_stopped=self._epoch < self._last_epoch)
        elif self.resumed is not None:  # no epoch was left
            self._callbacks.set(self.resumed.others["callbacks"], resets=False)
            set_random_state(self.resumed.others["random"])  # for the next call of fit
        self._position = None
        if self._history is not None:
            if self._past is not None:  # now: Keras's callback has begun after ours
                vars(self._history).update(self._past)
            self._past = copied({name: getattr(self._history, name) for name in HISTORY})
        self._progress.ends(self._past or {})

    def has_run(self, steps: int | None) -> None:
        """Notes the place after an execution: one of its callbacks may end the training."""
        if steps is None or self._position is None or self._iterator is None:
            self._position = None
        elif steps:
            self._position = self._iterator.position(self._position.epoch_step + steps)

    def close(self, error: BaseException | None) -> None:
        """At the end of the fit: saves one that was interrupted, and waits for the writer.

        Raises:
            CheckpointError: if a checkpoint could not be written.
        """
        set_first_epoch(self._controller.model, None)
        try:
            if _is_saved(error):
                with at_once():  # another Ctrl-C ends it
                    self._save_interrupted()
            self._writer.wait()
        except CheckpointError as failure:
            if error is None:
                raise
            logger.error("%s", failure)  # the training has an error of its own
        finally:
            self._exit.close()

    def _save_interrupted(self) -> None:
        if self._position is None or self._saved is not None:
            return
        self._write(*self._end or (values_of(self._controller), self._callbacks.get()))
        self._writer.wait()
        self._say_saved()

    def _say_saved(self) -> None:
        if self._schedule.writes:
            logger.warning(
                "The training was interrupted, and saved in %s. Run the script again to continue.",
                self._directory.path_of(self._step),
            )

    def _resume(self, epochs: ResumableEpochs, saved: SavedFit) -> None:
        position = saved.position
        # Callbacks may have changed some of them since: a rate, when the epoch began.
        begins = position.epoch_step == 0
        put_values(self._controller.model, saved.model, not begins, self._assigned)
        self._assigned, self.resumed = {}, replace(saved, model={})  # the host needs it no more
        parts, function = saved.model.get(METRIC_PARTS), self._controller.functions.training
        if parts and position.epoch_step and function is not None:
            function.resume_metric_parts(parts)
        self._callbacks.set(saved.others["callbacks"])
        self._ended = saved.others["ended"]
        self._steps_before = saved.checkpoint.manifest.step - position.epoch_step
        self._schedule.begin(saved.checkpoint.manifest.step)
        set_first_epoch(self._controller.model, None)
        self._passes.restore(saved.others, position)
        self._validated = self._validated_before = list(saved.others["validated"])
        epochs.resume(position)
        self._position = position

    # Data that is drawn again.

    def logs_of_whole_epoch(self) -> ArrayTree:
        """Returns the logs of a resumed epoch that has no steps left; None for any other."""
        return None if self._ended is None else self._ended["logs"]

    def has_drawn_order(self) -> None:
        """After a resumed epoch has drawn the order of its rows once more."""
        self._passes.has_drawn_order()

    def skips(self, source: TrackedBatches, steps: int, places: Sequence[int] = ()) -> None:
        """Draws and drops the batches of a pass that were trained before.

        Args:
            source: of the batches.
            steps: number of batches before the position.
            places: numbers of batches after which epochs of the same pass ended.

        Raises:
            CheckpointError: if there are fewer.
        """
        with self._nothing_to_save_on_error():
            if not self._passes.skip(source, steps, places):
                raise CheckpointError(
                    f"The data ends after {source.drawn} batches, and {steps} were trained before "
                    f"the checkpoint in {self._directory.path}. Call fit with the same data."
                )

    def repeats_pass(self, source: TrackedBatches, asked: int) -> None:
        """Draws and drops the batches of a pass that is over.

        Args:
            source: of the batches.
            asked: number of batches to ask for, which may be one more than there are.
        """
        with self._nothing_to_save_on_error():
            self._passes.repeat(source, asked)

    def begins_validation(self, epochs: ResumableEpochs) -> None:
        """Before an evaluation draws its data: draws again what was drawn before the checkpoint."""
        if not self._validated_before or epochs is not validation_epochs(self._controller.model):
            return
        epochs.drawn, self._validated_before = self._validated_before, []
        if goes_on(epochs.data_adapter):
            for steps in epochs.drawn:
                batches = iter(epochs.data_adapter.get_jax_iterator())
                self._passes.repeat(TrackedBatches(batches), steps)

    def _count_validated(self) -> list[int]:
        """Returns the number of batches of each validation so far."""
        epochs = validation_epochs(self._controller.model)
        if epochs is not None and not self._validated_before:
            self._validated = epochs.drawn
        return self._validated

    @contextmanager
    def _nothing_to_save_on_error(self) -> Iterator[None]:
        """Surrounds batches that are drawn again: after an error, the data is somewhere else."""
        try:
            yield
        except BaseException:
            self._position = None
            raise

    # Saving.

    @property
    def _step(self) -> int:
        return self._steps_before + (self._position.epoch_step if self._position else 0)

    def _visit(self, position: EpochPosition, may_save: bool = True, is_due: bool = False) -> None:
        """Saves the training at a place between two executions, if that is due."""
        self._position = position
        signal, seconds_due = self._schedule.agree(self._termination.signal)
        self._is_postponed |= seconds_due
        if may_save:
            is_due |= self._schedule.is_due(self._step) or self._is_postponed
        is_leaving = bool(signal) and process_count() > 1  # one process saves where it ends
        if is_leaving or is_due:
            self._save(is_leaving)
        if is_leaving:
            self._say_saved()
            self._position = None
            self._termination.leave(signal)
        self._writer.check()

    def _save(self, is_leaving: bool) -> None:
        if self._writer.is_busy and process_count() == 1:
            self._is_postponed = True  # to the first execution after which nothing is written
            self._say_postponed()
            return
        begin = time.perf_counter()
        self._writer.wait()
        values = values_of(self._controller)
        self.blocked_seconds = time.perf_counter() - begin
        self._is_postponed = False
        self._write(values, self._callbacks.get())
        if is_leaving:
            self._writer.wait()

    def _say_postponed(self) -> None:
        """Says once that writing a checkpoint takes longer than training until the next one."""
        if self._has_postponed:
            return
        self._has_postponed = True
        options, steps = self._options, self._directory.steps()
        asked = "every_steps" if options.every_steps else "every_seconds"
        limit = "an epoch" if options.each_epoch else f"{asked}={getattr(options, asked)}"
        newest = f"Complete so far: that of step {steps[-1]}" if steps else "None is complete yet"
        self._say(
            f"The checkpoint of step {self._step} waits until the one before is written to "
            f"{self._directory.path}, which takes longer than {limit}. {newest}. To have each, set "
            "async_save=False, with which the training waits for it, or a larger number.",
            logging.INFO if options.each_epoch else logging.WARNING,
        )

    def _write(self, values: dict[str, Any], callbacks: Any, is_stopped: bool = False) -> None:
        self._schedule.wrote()
        if not self._schedule.writes or self._position is None:
            return
        validated, data = self._count_validated(), self._passes.values(self._position)
        if self._ended is not None:  # a validation may have continued since
            data = self._ended_data
            values, callbacks = {**values, **self._ended["metrics"]}, self._ended["callbacks"]
            validated = self._ended["validated"]
        others = {
            "progress": self._progress.facts(),
            "facts": self._facts,
            "data": self._data,
            "options": self._update_options,
            "position": asdict(self._position),
            **data,
            "callbacks": callbacks,
            "ended": self._ended,
            "validated": validated,
            "stopped": is_stopped,
            "stages": self._controller.setup.stages.numbers,
        }
        snapshot = Snapshot(
            step=self._step,
            epoch=self._epoch,
            epoch_step=self._position.epoch_step,
            kind=FIT,
            model=values,
            others=copied(others),
        )
        self._writer.write(snapshot)


def _is_saved(error: BaseException | None) -> bool:
    """Whether a training that ends by an error is saved then: after Ctrl-C or SIGTERM."""
    is_asked = isinstance(error, KeyboardInterrupt | TerminatedError)
    return is_asked and process_count() == 1 and not isinstance(error, ImpatientInterrupt)
