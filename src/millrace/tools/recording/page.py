"""The page of a run, written beside its records.

at the end of an epoch  if the last page is some time ago, and took a small share of it
at the end of a loop    if records came, and the last page of a loop is some time ago
at exit                 if records came after the last page

A page that is open in a browser loads itself anew during the run.
"""

import logging
import sys
import threading
import time
from collections.abc import Callable

from millrace.base.records.directory import RunDirectory
from millrace.base.records.run import load
from millrace.base.threads.scoped_value import Notes
from millrace.tools.reports.page import write_page

logger = logging.getLogger("millrace")

NAME = "report.html"
SECONDS = 30.0  # between two pages, at least
SHARE = 20  # and that many times the seconds that the last one took
EPOCH_SHARE = 100  # likewise between two pages of epochs, for which training waits


class RunPage:
    """Writes the page of one run."""

    def __init__(self, directory: RunDirectory):
        self.path = directory.path / NAME
        self.is_wanted_on_terminal = False
        self._directory = directory
        self._due = 0.0
        # Not at once: most runs end before.
        self._epoch_due = time.monotonic() + SECONDS
        self._written = 0  # records that the last page has
        self._notes = Notes()  # what is said once
        self._lock = threading.Lock()

    def epoch_has_ended(self, write_records: Callable[[], object]) -> None:
        """Writes the page, if it is time for one.

        Args:
            write_records: writes the records of the epoch that are not in their file yet.
        """
        if time.monotonic() >= self._epoch_due:
            write_records()
            self._write_now()

    def loop_has_ended(self) -> None:
        """Writes the page, unless the last one of a loop is new."""
        if time.monotonic() >= self._due:
            took = self._write_now()
            self._due = time.monotonic() + max(SECONDS, SHARE * took)

    def process_ends(self) -> None:
        """Writes the page if records came after the last one, and says where it is."""
        self._write_now()
        if self.is_wanted_on_terminal and self.path.exists():
            print(f"Report of this run: {self.path}", file=sys.stderr)

    def _write_now(self) -> float:
        """Writes the page if records came, and returns the seconds that it took."""
        records = self._directory.written
        # Where the directory is gone, the log says so already, and writing would make it again.
        if records == self._written or not self._directory.path.is_dir():
            return 0.0
        if not self._lock.acquire(blocking=False):
            return 0.0
        begin = time.monotonic()
        try:
            write_page([load(self._directory.path)], self.path)
            self._written = records
            if self._notes.is_new("written"):
                logger.info("The report of this run is %s.", self.path)
        except Exception:  # of any kind: the records are there
            if self._notes.is_new("failed"):
                logger.warning("%s could not be written.", self.path, exc_info=True)
        finally:
            self._lock.release()
        took = time.monotonic() - begin
        self._epoch_due = time.monotonic() + max(SECONDS, EPOCH_SHARE * took)
        return took
