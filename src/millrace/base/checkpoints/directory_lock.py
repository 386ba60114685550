"""The file `lock` of a directory of checkpoints: one training at a time writes there."""

import contextlib
import fcntl
import io
import logging
import os
import pathlib
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from millrace.errors import CheckpointError

logger = logging.getLogger("millrace")

_LOCK = "lock"
_LOCK_SECONDS = 2.0  # to wait for a lock: a process that was killed may leave children that hold it
_LONGEST = 300  # characters of the file that are read


@contextmanager
def locked_directory(path: pathlib.Path) -> Iterator[Callable[[], None]]:
    """Keeps a directory for one training. Yields a function that writes down its process.

    Args:
        path: of the directory, which exists.

    Raises:
        CheckpointError: if another training has it, or its lock cannot be made.
    """
    try:
        file = open(path / _LOCK, "ab+", buffering=0)  # noqa: SIM115 - closed below
    except OSError as error:
        raise CheckpointError(
            f"Checkpoints cannot be written to {path}: {error.strerror}. Name a directory that can "
            "be written."
        ) from error

    def claim() -> None:
        with contextlib.suppress(OSError):
            file.truncate(0)
            file.write(f"process {os.getpid()} on {socket.gethostname()}\n".encode())

    try:
        if not _lock(file):
            file.seek(0)
            owner = file.read(_LONGEST).decode(errors="replace").strip()
            raise CheckpointError(
                f"Another training writes checkpoints to {path}: "
                f"{owner or 'its process is not known'}. Give each training a directory of its "
                "own, or wait for its end."
            )
        yield claim
    finally:
        with contextlib.suppress(OSError):  # of the disk: nothing in this file is needed
            file.close()


def owner_of(path: pathlib.Path) -> str | None:
    """Returns the process that keeps a directory for its training; None if there is none."""
    try:
        file = open(path / _LOCK, encoding="utf-8", errors="replace")  # noqa: SIM115 - closed below
    except OSError:
        return None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return file.read(_LONGEST).strip() or "a process that is not known"
        except OSError:  # a file system without locks
            return None
    return None


def _lock(file: io.FileIO) -> bool:
    """Takes the lock of a file, which the system ends with this process; tells whether it has."""
    end = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= end:
                return False
        except OSError as error:
            logger.warning(
                "Nothing keeps another training from writing to %s: %s.",
                pathlib.Path(file.name).parent,
                error.strerror,
            )
            return True
        time.sleep(0.05)
