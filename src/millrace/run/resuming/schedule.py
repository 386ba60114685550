"""The times at which a training is saved, on which several processes agree."""

import json
import time
from dataclasses import dataclass

from millrace.run.processes.agreement import process_count, process_index, texts_of_all

_AGREE_SECONDS = 1.0  # between two agreements of several processes
PATIENCE_SECONDS = 600.0  # from the first process to the last at an agreement


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveOptions:
    """When checkpoints are written."""

    every_steps: int | None = None
    every_seconds: float | None = None
    deadline_seconds: float = 30.0  # from SIGTERM to the end of the process
    in_thread: bool = True  # whether files are written beside the training

    @property
    def each_epoch(self) -> bool:
        """Whether a checkpoint is written at the end of each epoch."""
        return self.every_steps is None and self.every_seconds is None


class SaveSchedule:
    """Tells after each execution whether a checkpoint is due."""

    def __init__(self, options: SaveOptions):
        self._options = options
        self._steps = 0  # of the training, when it was last asked
        self._written = time.monotonic()
        self._is_alone = process_count() == 1
        self._asked, self._next, self._since = 0, 1, time.monotonic()

    def begin(self, steps: int) -> None:
        """Begins after a number of steps."""
        self._steps, self._written = steps, time.monotonic()

    def is_due(self, steps: int) -> bool:
        """Whether a checkpoint is due after a number of steps, more than when it was last asked."""
        every, before = self._options.every_steps, self._steps
        self._steps = steps
        return every is not None and steps // every > before // every

    def wrote(self) -> None:
        """Counts the seconds from now."""
        self._written = time.monotonic()

    def agree(self, signal: int) -> tuple[int, bool]:
        """Returns the signal for which all leave here, and whether a checkpoint is due by the time.

        All processes ask at the same places. They exchange their answers about once a second.

        Args:
            signal: that has arrived in this process, or 0.
        """
        every = self._options.every_seconds
        own = every is not None and time.monotonic() - self._written >= every
        if self._is_alone:
            return signal, own
        self._asked += 1
        if self._asked < self._next:
            return 0, False
        now = time.monotonic()
        places = max(round(self._asked * _AGREE_SECONDS / max(now - self._since, 1e-6)), 1)
        text = json.dumps([signal, own, min(places, 2 * self._next)])
        answers = [json.loads(each) for each in texts_of_all(text, PATIENCE_SECONDS)]
        self._asked, self._since, self._next = 0, time.monotonic(), answers[0][2]
        return max(answer[0] for answer in answers), answers[0][1]

    @property
    def writes(self) -> bool:
        """Whether this process writes the files: one does, as all have the same values."""
        return process_index() == 0
