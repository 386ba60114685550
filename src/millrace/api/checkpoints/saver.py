"""The times at which a training is saved, on which several processes agree."""

import json
import logging
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from millrace.base.checkpoints.directory import CheckpointDirectory
from millrace.base.checkpoints.stored import Snapshot
from millrace.base.checkpoints.writer import CheckpointWriter
from millrace.run.processes.agreement import process_count, process_index, texts_of_all

logger = logging.getLogger("millrace")

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


class Saver:
    """Tells when a checkpoint of a fit is due, and lets a thread write it.

    One process writes, as all have the same values.
    """

    def __init__(self, directory: CheckpointDirectory, options: SaveOptions, is_quiet: bool):
        self.directory, self.options = directory, options
        self.writes = process_index() == 0
        self.writer = CheckpointWriter(directory, options.in_thread)
        self._is_quiet = is_quiet  # whether the log alone says where the training continues
        self._steps = 0  # of the training, when it was last asked
        self._written = time.monotonic()
        self._is_alone = process_count() == 1
        self._asked, self._next, self._since = 0, 1, time.monotonic()
        self._waits = False  # whether one is due that could not be written yet
        self._has_postponed = False  # whether that was said

    def begin(self, steps: int) -> None:
        """Begins after a number of steps."""
        self._steps, self._written = steps, time.monotonic()

    def agree(self, signal: int) -> int:
        """Returns the signal for which all leave here, and learns whether the seconds are over.

        All processes ask at the same places. They exchange their answers about once a second.

        Args:
            signal: that has arrived in this process, or 0.
        """
        every = self.options.every_seconds
        own = every is not None and time.monotonic() - self._written >= every
        if self._is_alone:
            self._waits |= own
            return signal
        self._asked += 1
        if self._asked < self._next:
            return 0
        now = time.monotonic()
        places = max(round(self._asked * _AGREE_SECONDS / max(now - self._since, 1e-6)), 1)
        text = json.dumps([signal, own, min(places, 2 * self._next)])
        answers = [json.loads(each) for each in texts_of_all(text, PATIENCE_SECONDS)]
        self._asked, self._since, self._next = 0, time.monotonic(), answers[0][2]
        self._waits |= answers[0][1]
        return max(answer[0] for answer in answers)

    def is_due(self, steps: int) -> bool:
        """Whether a checkpoint is due after a number of steps, more than when it was last asked."""
        every, before = self.options.every_steps, self._steps
        self._steps = steps
        return self._waits or (every is not None and steps // every > before // every)

    def postpones(self, step: int) -> bool:
        """Tells whether a checkpoint that is due waits until the one before is written.

        With several processes the training waits, too, since they leave together.
        """
        if not self.writer.is_busy or not self._is_alone:
            return False
        self._waits = True
        if not self._has_postponed:
            self._has_postponed = True
            self._say_postponed(step)
        return True

    def write(self, make: Callable[[], Snapshot]) -> None:
        """Waits for the write before, begins another, and counts the seconds from now."""
        self._written, self._waits = time.monotonic(), False
        if self.writes:
            self.writer.write(make())

    def _say_postponed(self, step: int) -> None:
        """Says that writing a checkpoint takes longer than training until the next one."""
        options, steps = self.options, self.directory.steps()
        asked = "every_steps" if options.every_steps else "every_seconds"
        limit = "an epoch" if options.each_epoch else f"{asked}={getattr(options, asked)}"
        newest = f"Complete so far: that of step {steps[-1]}" if steps else "None is complete yet"
        self.say(
            f"The checkpoint of step {step} waits until the one before is written to "
            f"{self.directory.path}, which takes longer than {limit}. {newest}. To have each, set "
            "async_save=False, with which the training waits for it, or a larger number.",
            logging.INFO if options.each_epoch else logging.WARNING,
        )

    def say_saved(self, step: int) -> None:
        """Says that a training that was interrupted can continue."""
        if self.writes:
            logger.warning(
                "The training was interrupted, and saved in %s. Run the script again to continue.",
                self.directory.path_of(step),
            )

    def say(self, line: str, level: int = logging.INFO) -> None:
        """Logs a line, and prints it for those who do not read that level of the log."""
        logger.log(level, "%s", line)
        if self.writes and not (self._is_quiet or logger.isEnabledFor(level)):
            print(line, file=sys.stderr)
