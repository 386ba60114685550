"""The wait of a loop for the next batch of its data set.

batch drawn ......... ......... ......... 60 s: a warning ......... the limit: DataError
                         no batch           both with the line where the data set is
"""

import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import TypeVar

from millrace.base.error_notes import add_note
from millrace.base.interrupts import raise_if_interrupted
from millrace.base.own_code import is_own_file
from millrace.errors import DataError

T = TypeVar("T")

logger = logging.getLogger("millrace")

WARN_SECONDS = 60.0  # without a batch
POLL_SECONDS = 0.05  # between two checks for an interrupt by the user


class BatchWait:
    """The batches that were drawn from a data set, and the longest wait for another one.

    Args:
        name_of: returns the name of a batch for messages, by its number from 0: `batch 13 of epoch
            1 of fit`.
        limit: the longest wait, in seconds; None for no limit.
    """

    def __init__(self, name_of: Callable[[int], str], limit: float | None = None):
        self._name_of = name_of
        self._limit = limit
        self._drawn = 0
        self._last = time.monotonic()  # time of the last batch
        self._has_warned = False
        self.is_over = False  # the limit has been reached: the data set may never return

    def add_drawn(self) -> None:
        """Counts a batch; called by the thread that draws."""
        self._drawn += 1
        self._last = time.monotonic()

    def check(self, began: float, thread: threading.Thread) -> float:
        """Returns the seconds until the next check is due.

        Args:
            began: time at which the loop began to wait.
            thread: draws the batches.

        Raises:
            DataError: if no batch came within the limit.
        """
        waited = time.monotonic() - max(began, self._last)
        if self._limit is not None and waited >= self._limit:
            self.is_over = True
            raise DataError(
                f"The data set has not returned {self._name_of(self._drawn)} for {waited:.1f} s; "
                f"max_wait_seconds={self._limit:g} allows no more. It is here:\n\n"
                f"{stack_of(thread)}\nIf it hangs, find the reason there; with workers, run the "
                "data set without them to see the line where one hangs. If it only needs more "
                "time, set a larger max_wait_seconds in model.set_infeed_queue_options(), or "
                "'auto' for no limit."
            )
        if not self._has_warned and waited >= WARN_SECONDS:
            self._has_warned = True
            logger.warning(
                "The data set has not returned %s for %.0f s. It is here:\n\n%s\n"
                "model.set_infeed_queue_options(max_wait_seconds=...) ends such a wait with an "
                "error.",
                self._name_of(self._drawn),
                waited,
                stack_of(thread),
            )
        dues = [] if self._has_warned else [WARN_SECONDS]
        dues += [] if self._limit is None else [self._limit]
        return max(min(dues, default=WARN_SECONDS) - waited, 0.001)

    def add_note(self, error: BaseException, batch: int) -> None:
        """Says in the traceback of an error in which batch it was raised, by its number from 0."""
        add_note(error, f"raised while {self._name_of(batch)} was prepared.")

    def within_limit(self, draw: Callable[[], T]) -> T:
        """Returns `draw()`, which draws batches outside of an infeed.

        With a limit it runs in a thread of its own, so that it can be left where it hangs.

        Raises:
            DataError: if it does not return within the limit.
            BaseException: an error of the data set.
        """
        if self._limit is None:
            return draw()
        results: list[T] = []
        errors: list[BaseException] = []

        def run() -> None:
            try:
                results.append(draw())
            except BaseException as error:  # of any kind: raised again in the owner's thread
                errors.append(error)

        thread = threading.Thread(target=run, name="millrace-first-batch", daemon=True)
        self._last = began = time.monotonic()
        thread.start()
        while thread.is_alive():
            raise_if_interrupted()
            thread.join(min(POLL_SECONDS, self.check(began, thread)))
        if errors:
            raise errors[0]
        return results[0]


def stack_of(thread: threading.Thread) -> str:
    """Returns the stack of a thread as text, from the first line that is not part of millrace."""
    frame = sys._current_frames().get(thread.ident or 0)
    if frame is None:
        return "  (its thread has ended)\n"
    stack = traceback.extract_stack(frame)
    own = [k for k, each in enumerate(stack) if is_own_file(each.filename)]
    outside = stack[own[-1] + 1 :] if own else stack
    return "".join(traceback.format_list(outside or stack))
