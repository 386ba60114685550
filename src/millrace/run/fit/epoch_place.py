"""The place of a loop in its epochs and in the passes through its data, and the way back to it.

An epoch is a pass, or `steps_per_epoch` of one:

    passes    |------------ 1 ------------|------------ 2 ------------|
    epochs    |------ 1 ------|------ 2 ------|------ 3 ------|------ 4
                                  ^ resumed here, `begun` steps after the begin of epoch 2
"""

import logging

from millrace._compat.keras_data import DataAdapter, dataset_behind
from millrace._compat.keras_positions import remembers_passes, tracked_source
from millrace.programs.feeds.merged_batches import MergedAdapter, inner_adapter
from millrace.programs.feeds.source_position import (
    SourceState,
    StateFunctions,
    StateRefusedError,
    TrackedBatches,
)
from millrace.run.fit.checkpoint_places import EpochPosition, LoopCheckpoints

logger = logging.getLogger("millrace")


class DataPasses:
    """The passes so far."""

    def __init__(self, adapter: DataAdapter):
        self._adapter = adapter
        self._newest: TrackedBatches | None = None  # the newest pass, which may be over
        self._asked: list[int] = []  # batches that were asked for in the passes before it

    def begin_pass(self) -> TrackedBatches:
        """Returns the batches of another pass."""
        if self._newest is not None:
            self._asked.append(self._newest.asked)
        self._newest = self._batches(None)
        return self._newest

    def resume_pass(self, position: EpochPosition, checkpoints: LoopCheckpoints) -> TrackedBatches:
        """Returns the batches of the pass of a position, which still are to be skipped up to it."""
        self._repeat_passes(position, checkpoints)
        self._newest = self._batches(position.source if position.pass_step else None)
        return self._newest

    def position(
        self, epoch_step: int, pass_step: int, pass_length: int | None, epochs: int
    ) -> EpochPosition:
        """Returns a position in the newest pass, or at the begin of another one."""
        source, passes, state = self._newest, tuple(self._asked), None
        if source is not None:
            if not pass_step:
                passes += (source.asked,)
            state = source.state_at(pass_step or source.drawn)
        return EpochPosition(epoch_step, pass_step, pass_length, epochs, state, passes)

    @staticmethod
    def ends_of_epochs(position: EpochPosition, steps_per_epoch: int | None) -> list[int]:
        """Returns the steps of a pass before a position at which epochs ended."""
        begin, steps = position.pass_step - position.epoch_step, steps_per_epoch
        return [] if steps is None else list(range(begin % steps or steps, begin + 1, steps))

    def _batches(self, begin: SourceState | None) -> TrackedBatches:
        adapter = self._adapter
        if isinstance(adapter, MergedAdapter):
            batches, found = tracked_source(adapter.adapter)
            batches = adapter.merged(batches)
            found = found if adapter.replicas == 1 else None  # it is ahead of what is handed out
        else:
            batches, found = tracked_source(adapter)
        functions = None if found is None else StateFunctions(*found)
        try:
            return TrackedBatches(batches, functions, begin)
        except StateRefusedError as error:
            logger.warning(
                "The data does not take the state that was saved, and is read again: %s", error
            )
            return self._batches(None)

    def _repeat_passes(self, position: EpochPosition, checkpoints: LoopCheckpoints) -> None:
        """Leaves the data as the passes before a position have left it."""
        self._asked = list(position.passes)
        if not position.passes or dataset_behind(self._adapter) is not None:
            return  # the state where the pass begins says it all
        if position.source is not None:
            if not position.pass_step:
                checkpoints.repeats_pass(self._batches(position.source), position.passes[-1])
        elif remembers_passes(inner_adapter(self._adapter)):
            for asked in position.passes:
                checkpoints.repeats_pass(self._batches(None), asked)


class EpochPlace:
    """Counts epochs, and the steps before the running one."""

    def __init__(self, passes: DataPasses):
        self.passes = passes
        self.number = 0  # of the running epoch, from 1
        self.begun = 0  # steps of it before it was resumed
        self._pass_begin = 0  # steps of the pass before it
        self._epochs_over = 0  # before it
        self._resumed: EpochPosition | None = None  # from which it is still to continue

    def begin_epoch(self, steps_in_pass: int) -> None:
        """Places the loop between two epochs, after so many steps of a pass."""
        self.begun, self._pass_begin, self._epochs_over = 0, steps_in_pass, self.number
        self._resumed = None

    def resume(self, position: EpochPosition) -> None:
        """Lets the epoch that begins continue from a position."""
        self._resumed = position
        self.begun = position.epoch_step
        self._pass_begin = position.pass_step - position.epoch_step
        self.number = self._epochs_over = position.epochs

    def take_resumed(self) -> EpochPosition | None:
        """Returns the position from which data is to be drawn, once; None for the begin."""
        position, self._resumed = self._resumed, None
        return position

    @property
    def trained(self) -> int:
        """Steps of the pass before the first one that the running epoch runs."""
        return self._pass_begin + self.begun

    def after(self, epoch_step: int, pass_length: int | None) -> EpochPosition:
        """Returns the position after a number of steps of the running epoch."""
        pass_step = self._pass_begin + epoch_step
        return self.passes.position(epoch_step, pass_step, pass_length, self._epochs_over)

    def next(self, pass_step: int, pass_length: int | None) -> EpochPosition:
        """Returns the position at which another epoch would begin."""
        return self.passes.position(0, pass_step, pass_length, self.number)
