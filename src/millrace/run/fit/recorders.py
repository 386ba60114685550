"""The writer of a loop's records, as the loop sees it. `millrace.tools.recording` makes them.

    begin(...)                          fit, evaluate, predict, or train_on_batch begins
      recorder.begins(mode, epoch)        an execution begins
      recorder.executed(steps, seconds)   and has been dispatched
      recorder.begins_epoch(number)       the epoch before it is over, with its logs
      recorder.opens(feed, mode)          an infeed has begun
      recorder.closes(feed)               and ends
    recorder.end(error)

Nothing here waits for a device or raises an error.
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from millrace.programs.feeds.infeed import Infeed
from millrace.programs.plan import Mode
from millrace.run.fit.setup import Setup


class LoopRecorder(Protocol):
    """Writes the records of one loop."""

    at_end: list[Callable[[], object]]  # called when it ends
    # Called at the end of an epoch of fit, each with a function that writes its records.
    at_epoch: list[Callable[[Callable[[], None]], object]]

    @property
    def number(self) -> int:
        """The number of the loop in its records."""
        ...

    def write(self) -> None:
        """Writes the record of the loop as it is."""
        ...

    def begins(self, mode: Mode, epoch: int) -> None:
        """Notes the begin of an execution; `epoch` is from 1, or 0 outside of fit."""
        ...

    def executed(
        self, steps: int, dispatch_seconds: float, update_seconds: Mapping[str, float]
    ) -> None:
        """Notes the steps of an execution, and the host's seconds in calls of compiled code.

        Args:
            steps: of the execution.
            dispatch_seconds: the host's, in calls of compiled code.
            update_seconds: what the time of its updates went to, where that is known.
        """
        ...

    def begins_epoch(self, number: int) -> None:
        """Notes the begin of an epoch of fit, from 1; Keras may begin the first one twice."""
        ...

    def opens(self, feed: Infeed, mode: Mode) -> None:
        """Looks at an infeed from now on."""
        ...

    def closes(self, feed: Infeed) -> None:
        """Looks at an infeed for the last time."""
        ...

    def end(self, error: BaseException | None) -> None:
        """Writes what is left; `error` has ended the loop."""
        ...


class LoopRecorders(Protocol):
    """Makes the recorders of the loops of a strategy."""

    def begin(
        self, setup: Setup, loop: int, mode: Mode, arguments: Mapping[str, Any]
    ) -> LoopRecorder | None:
        """Returns the recorder of a loop that begins; None if nothing is recorded.

        Args:
            setup: of its model.
            loop: its number in this process.
            mode: of fit, evaluate or predict.
            arguments: of the call, by name.
        """
        ...

    def on_batch(self, setup: Setup, mode: Mode) -> LoopRecorder | None:
        """Returns the recorder of `train_on_batch` and the like; its `end` ends one call."""
        ...
