"""The place of a loop in its epochs, and in the passes through its data.

An epoch is a pass, or `steps_per_epoch` of one:

    passes    |------------ 1 ------------|------------ 2 ------------|
    epochs    |------ 1 ------|------ 2 ------|------ 3 ------|------ 4
                                  ^ resumed here, `begun` steps after the begin of epoch 2
"""

from millrace.run.fit.checkpoint_places import EpochPosition
from millrace.run.fit.data_passes import DataPasses


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
