"""Writes checkpoints in a thread, beside the training."""

import threading

from millrace.base.checkpoints.directory import CheckpointDirectory
from millrace.base.checkpoints.stored import Snapshot


class CheckpointWriter:
    """Writes one snapshot at a time. The thread of a write ends with it."""

    def __init__(self, directory: CheckpointDirectory, in_thread: bool):
        self._directory = directory
        self._in_thread = in_thread
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a write is under way."""
        return self._thread is not None and self._thread.is_alive()

    def write(self, snapshot: Snapshot) -> None:
        """Waits for the write before, and begins another.

        Raises:
            CheckpointError: if the one before has failed, or without a thread this one.
        """
        self.wait()
        if not self._in_thread:
            self._directory.write(snapshot)
            return
        self._thread = threading.Thread(
            target=self._write, args=(snapshot,), name="millrace-checkpoint", daemon=True
        )
        self._thread.start()

    def _write(self, snapshot: Snapshot) -> None:
        try:
            self._directory.write(snapshot)
        except BaseException as error:  # of any kind: raised again in the training
            self._error = error

    def check(self) -> None:
        """Raises the error of a write that has ended.

        Raises:
            CheckpointError: if it has failed.
        """
        if not self.is_busy:
            self.wait()

    def wait(self) -> None:
        """Waits for a write that is under way.

        Raises:
            CheckpointError: if it has failed.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error
