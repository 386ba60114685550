"""The position in the epoch, for messages about recompilation."""

from millrace.plan import Mode

_METHODS = {Mode.TRAIN: "fit", Mode.TEST: "evaluate", Mode.PREDICT: "predict"}


class DataPosition:
    """The position of the batches that run next."""

    def __init__(self, mode: Mode):
        self._method = _METHODS[mode]
        self._epoch: int | None = None
        self._batch = self._begin = 0

    def begin(self, epoch: int | None, batch: int) -> None:
        """Begins an execution.

        Args:
            epoch: the number of the epoch, from 1; None for `train_on_batch` and the like.
            batch: the number of the first batch in it, from 0.
        """
        self._epoch, self._batch, self._begin = epoch, batch, batch

    @property
    def epoch(self) -> int:
        """The number of the epoch, from 1; 0 if there is none."""
        return self._epoch or 0

    @property
    def steps(self) -> int:
        """Batches of the execution that have run."""
        return self._batch - self._begin

    def add(self, batches: int) -> None:
        """Moves on by a number of batches."""
        self._batch += batches

    def __call__(self) -> str:
        """Returns the position in words: `batch 1,875 of epoch 1 of fit`."""
        if self._epoch is None:
            return ""
        return f"batch {self._batch + 1:,} of epoch {self._epoch} of {self._method}"
