"""What makes the writers of loops, as a strategy sees it: `tools/recording/recorders.py`.

    begin(...)                        fit, evaluate, predict, or train_on_batch begins
      writer.begins(mode, epoch)        an execution begins
      writer.executed(steps, seconds)   and has been dispatched
      writer.begins_epoch(number)       the epoch before it is over, with its logs
      writer.opens(feed, mode)          an infeed has begun
      writer.closes(feed)               and ends
    writer.end(error)

Nothing here waits for a device or raises an error.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from millrace.programs.plan import Mode
from millrace.run.fit.setup import Setup
from millrace.run.recording.loop_recorder import LoopWriter


class LoopRecorders(Protocol):
    """Makes the writers of the loops of a strategy."""

    def begin(
        self, setup: Setup, loop: int, mode: Mode, arguments: Mapping[str, Any]
    ) -> LoopWriter | None:
        """Returns the writer of a loop that begins; None if nothing is recorded.

        Args:
            setup: of its model.
            loop: its number in this process.
            mode: of fit, evaluate or predict.
            arguments: of the call, by name.
        """
        ...

    def on_batch(self, setup: Setup, mode: Mode) -> LoopWriter | None:
        """Returns the writer of `train_on_batch` and the like; its `end` ends one call."""
        ...
