"""The position in the epoch, for errors and for messages about recompilation."""

from millrace.programs.plan import BatchSpec, Mode

_METHODS = {Mode.TRAIN: "fit", Mode.TEST: "evaluate", Mode.PREDICT: "predict"}


def batch_name(mode: Mode, epoch: int, batch: int) -> str:
    """Returns the position of a batch in words: `batch 1,875 of epoch 1 of fit`.

    Args:
        mode: of the loop.
        epoch: the number of the epoch, from 1.
        batch: the number of the batch in it, from 0.
    """
    return f"batch {batch + 1:,} of {epoch_name(mode, epoch)}"


def epoch_name(mode: Mode, epoch: int) -> str:
    """Returns `epoch 1 of fit`."""
    return f"epoch {epoch} of {_METHODS[mode]}"


class DataPosition:
    """The position of the batches that run next."""

    def __init__(self, mode: Mode):
        self._mode = mode
        self._epoch: int | None = None
        self._batch = self._begin = 0
        self._running = 0  # batches
        self._spec: BatchSpec | None = None  # of the running batches
        self._before: BatchSpec | None = None  # of those that ran before

    def begin(self, epoch: int | None, batch: int) -> None:
        """Begins an execution.

        Args:
            epoch: the number of the epoch, from 1; None for `train_on_batch` and the like.
            batch: the number of the first batch in it, from 0.
        """
        self._epoch, self._batch, self._begin = epoch, batch, batch
        self._running = 0
        if epoch in (None, 1) and not batch:
            self._spec = self._before = None

    @property
    def epoch(self) -> int:
        """The number of the epoch, from 1; 0 if there is none."""
        return self._epoch or 0

    @property
    def steps(self) -> int:
        """Batches of the execution that have run."""
        return self._batch - self._begin

    def run(self, batches: int, spec: BatchSpec) -> None:
        """Notes the number of batches that run now, and their common spec."""
        self._running, self._spec = batches, spec

    def add(self, batches: int) -> None:
        """Moves on by a number of batches, which have run."""
        self._batch += batches
        self._running, self._before = 0, self._spec

    def __call__(self) -> str:
        """Returns the position in words: `batch 1,875 of epoch 1 of fit`."""
        if self._epoch is None:
            return ""
        return batch_name(self._mode, self._epoch, self._batch)

    def name(self, batch: int) -> str:
        """Returns the name of a batch of the execution, by its number in it from 0."""
        if self._epoch is None:
            return f"batch {batch + 1:,}"
        return batch_name(self._mode, self._epoch, self._begin + batch)

    def span(self) -> str:
        """Returns the batches of the execution so far: `batches 5 to 8 of epoch 1 of fit`."""
        return self._span(self._begin, self._batch + self._running)

    def of_error(self) -> str:
        """Returns the batches in which an error was raised, with their shapes; empty for none."""
        if not self._running:
            return self.span()
        place = self._span(self._batch, self._batch + self._running)
        if not place or self._spec is None:
            return place
        place += f"{', each' if self._running > 1 else ''} ({str(self._spec) or 'no arrays'})"
        if self._before not in (None, self._spec):
            place += f". The batches before were ({self._before}): check the data set there"
        return place

    def _span(self, begin: int, end: int) -> str:
        if self._epoch is None or end <= begin:
            return ""
        if end == begin + 1:
            return batch_name(self._mode, self._epoch, begin)
        return f"batches {begin + 1:,} to {end:,} of {epoch_name(self._mode, self._epoch)}"
