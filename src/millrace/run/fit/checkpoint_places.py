"""Checkpoints as a running fit sees them: places at which one may be written or read."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from millrace.base.pytrees import ArrayTree
from millrace.programs.feeds.source_position import SourceState, TrackedBatches


@dataclass(frozen=True, slots=True)
class EpochPosition:
    """A place in the data of a training."""

    epoch_step: int  # steps of the epoch so far
    pass_step: int  # batches of the pass through the data so far
    pass_length: int | None  # batches of a whole pass, where that is known
    epochs: int  # that were over before this one, of the same fit
    # Of the data source, if it has one; where a pass begins, that at the end of the pass before.
    source: SourceState | None
    passes: tuple[int, ...] = ()  # batches that were asked for in the passes before


class ResumableEpochs(Protocol):
    """The epoch iterator of a fit, or of its validation."""

    data_adapter: Any
    drawn: list[int]  # batches of each epoch, or of each validation, of the fit so far

    def resume(self, position: EpochPosition) -> None:
        """Lets the epoch that begins continue from a position."""
        ...

    def position(self, epoch_step: int) -> EpochPosition:
        """Returns the position after a number of steps of the running epoch."""
        ...

    def next_position(self) -> EpochPosition:
        """Returns the position at which another epoch would begin."""
        ...

    @property
    def begins_pass(self) -> bool:
        """Whether the next epoch begins with the first batch of the data."""
        ...

    def facts(self) -> dict[str, str]:
        """Returns what identifies the data, by name."""
        ...

    def add_note(self, error: Exception) -> None:
        """Says in an error that Keras was building the model from the first batch, if it was."""

    def end(self, wait: bool = True) -> None:
        """Ends its threads; `wait` says whether to wait for the batch that is being made."""


class LoopCheckpoints(Protocol):
    """What `Checkpoint` does in the places of a running fit."""

    def begins_epoch(self, epochs: ResumableEpochs) -> None:
        """Before an epoch: all callbacks know of it, and the data source does not."""
        ...

    def between_executions(self, epochs: ResumableEpochs, epoch_step: int) -> None:
        """After an execution and its callbacks, where another one follows in the epoch."""
        ...

    def ends_epoch(self, epochs: ResumableEpochs, epoch_step: int) -> None:
        """After the last execution of an epoch and its callbacks, before the validation."""
        ...

    def logs_of_whole_epoch(self) -> ArrayTree:
        """Returns the logs of a resumed epoch that has no steps left; None for any other."""
        ...

    def has_drawn_order(self) -> None:
        """After a resumed epoch has drawn the order of its rows once more."""
        ...

    def skips(self, source: TrackedBatches, steps: int, places: Sequence[int] = ()) -> None:
        """Draws and drops the batches of a pass that were trained before.

        Args:
            source: of the batches.
            steps: number of batches before the position.
            places: numbers of batches after which epochs of the same pass ended.
        """
        ...

    def repeats_pass(self, source: TrackedBatches, asked: int) -> None:
        """Draws and drops the batches of a pass that is over.

        Args:
            source: of the batches.
            asked: number of batches to ask for, which may be one more than there are.
        """
        ...

    def begins_validation(self, epochs: ResumableEpochs) -> None:
        """Before an evaluation draws its data: draws again what was drawn before the checkpoint.

        Args:
            epochs: of the validation of the fit, or of another evaluation.
        """
        ...

    def has_run(self, steps: int | None) -> None:
        """After an execution, also one that was interrupted, and before its callbacks.

        Args:
            steps: of it that the state of the model has; None if the state is within an update.
        """
        ...

    def has_synced(self) -> None:
        """After the values of the loop have been written back to the variables."""
        ...

    def close(self, error: BaseException | None) -> None:
        """At the end of the fit, when the variables have their newest values.

        Args:
            error: that ended it, if any.
        """
        ...
