"""A directory of checkpoints.

    step-00000120/               complete: it got this name when everything in it was on the disk
        checkpoint.json              the manifest
        arrays/                      written by Orbax
    step-00000130.partial-4711/  being written, by process 4711
    step-00000110.removed-4711/  being removed
    step-00000100.damaged/       complete once, and not as it was written any more
    lock                         held by the training that writes here

A directory is renamed when all of its files are on the disk, so a name without an ending stands
for a complete checkpoint, whenever the process dies.
"""

import contextlib
import dataclasses
import errno
import fcntl
import logging
import os
import pathlib
import re
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from millrace.checkpoints.arrays import (
    forget_failed_write,
    hidden_late_errors,
    read_arrays,
    write_arrays,
)
from millrace.checkpoints.manifest import (
    ARRAYS,
    MANIFEST,
    DamagedError,
    Manifest,
    check_files,
    checksum,
)
from millrace.checkpoints.values import decode, encode
from millrace.errors import CheckpointError

logger = logging.getLogger("millrace")

_NAME = re.compile(r"step-(\d+)")
_UNFINISHED = re.compile(r"step-\d+\.(partial|removed)-\d+(-\d+)?")
_LOCK = "lock"
_LONGEST = 300  # characters of an error of a library
_NUMBERS = (
    errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS, errno.EACCES, errno.EPERM,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Values to be written as one checkpoint."""

    step: int
    epoch: int
    epoch_step: int
    kind: str  # "fit" or "loop"
    model: Any  # values of the model: plain values and arrays
    others: Any  # all other values, likewise


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One complete checkpoint."""

    path: pathlib.Path
    manifest: Manifest

    def values(self) -> tuple[Any, Any]:
        """Reads the values of the model, and all others.

        Raises:
            DamagedError: if it is not as it was written.
        """
        check_files(self.path, self.manifest)
        try:
            arrays = read_arrays(self.path / ARRAYS, self.manifest.arrays)
            model, others = decode(self.manifest.tree, arrays)
            return model, others
        except TypeError as error:
            raise DamagedError("it holds no values of a model") from error
        except (ValueError, RecursionError) as error:
            raise DamagedError(str(error)) from error


class CheckpointDirectory:
    """Writes, finds and removes the checkpoints of one training."""

    def __init__(self, path: str | os.PathLike[str], keep: int | None = None):
        """Names the directory, which is made when the first checkpoint is written.

        Args:
            path: of the directory.
            keep: number of newest checkpoints to keep; None keeps all. The newest one whose values
                are all finite is kept in any case.
        """
        self.path = pathlib.Path(path)
        self.keep = keep
        self._lock = threading.Lock()

    def steps(self) -> list[int]:
        """Returns the steps of the complete checkpoints, in order, unverified."""
        try:
            names = os.listdir(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return []
        matches = [_NAME.fullmatch(name) for name in names]
        return sorted(int(match[1]) for match in matches if match)

    def path_of(self, step: int) -> pathlib.Path:
        """Returns the directory of a checkpoint."""
        return self.path / f"step-{step:08d}"

    def open(self, step: int) -> Checkpoint:
        """Returns a checkpoint whose manifest is whole.

        Raises:
            DamagedError: if it is not.
        """
        path = self.path_of(step)
        return Checkpoint(path, Manifest.read(path))

    def newest(self) -> tuple[Checkpoint, tuple[Any, Any]] | None:
        """Returns the newest checkpoint that is as it was written, with its values.

        A damaged one is reported, and gets another name, since it would be in the way.

        Raises:
            CheckpointError: if there are some, and all are damaged.
        """
        damaged: dict[int, DamagedError] = {}
        for step in reversed(self.steps()):
            try:
                checkpoint = self.open(step)
                found = checkpoint, checkpoint.values()
            except DamagedError as error:
                damaged[step] = error
                continue
            for other, error in damaged.items():
                logger.warning(
                    "The checkpoint of step %d in %s is damaged: %s. It is called %s now, and that "
                    "of step %d is used.",
                    other,
                    self.path,
                    error,
                    self._set_aside(other),
                    step,
                )
            return found
        if damaged:
            step, error = next(iter(damaged.items()))
            raise CheckpointError(
                f"All {len(damaged)} checkpoints in {self.path} are damaged; that of step {step}: "
                f"{error}. Bring back a copy of one, or name another directory in "
                "Checkpoint(directory) to begin a new training."
            )
        return None

    def _set_aside(self, step: int) -> str:
        path = self.path_of(step)
        aside = path.with_name(f"{path.name}.damaged")
        for number in range(1, 100):
            if not aside.exists():
                break
            aside = path.with_name(f"{path.name}.damaged-{number}")
        with contextlib.suppress(OSError):
            os.rename(path, aside)
        return aside.name

    def write(self, snapshot: Snapshot) -> Manifest:
        """Writes a checkpoint, and removes those that are not kept.

        Raises:
            CheckpointError: if it cannot be written. Earlier ones stay as they are.
        """
        with self._lock, hidden_late_errors():
            partial: pathlib.Path | None = None
            try:
                self._make()
                partial = self._unused(f"step-{snapshot.step:08d}.partial-{os.getpid()}")
                manifest = _write(partial, snapshot)
                self._replace(partial, self.path_of(snapshot.step))
            except Exception as error:  # Orbax and its libraries have many
                failure = self._failure(snapshot.step, _reason(error))
            else:
                self._remove_old()
                return manifest
            forget_failed_write()
            if partial is not None:
                shutil.rmtree(partial, ignore_errors=True)
            raise CheckpointError(failure)

    def _failure(self, step: int, reason: str) -> str:
        steps = self.steps()
        left = f"The newest complete one is that of step {steps[-1]}" if steps else "There is none"
        return (
            f"The checkpoint of step {step} could not be written to {self.path}: {reason}. {left}. "
            "Make room or give permission there, and start again: the training goes on from the "
            "newest complete checkpoint."
        )

    def _make(self) -> None:
        if not self.path.is_dir():
            # Private: a checkpoint has the weights, and samples of nobody else's business.
            self.path.mkdir(parents=True, exist_ok=True)
            _sync_directory(self.path.parent)

    def _unused(self, name: str) -> pathlib.Path:
        path, number = self.path / name, 0
        while path.exists():
            number += 1
            path = self.path / f"{name}-{number}"
        return path

    def _replace(self, partial: pathlib.Path, path: pathlib.Path) -> None:
        """Gives a complete checkpoint its name, and removes an earlier one of the same step."""
        if path.exists():
            removed = self._unused(f"{path.name}.removed-{os.getpid()}")
            os.rename(path, removed)
            os.rename(partial, path)
            _sync_directory(self.path)
            shutil.rmtree(removed, ignore_errors=True)
        else:
            os.rename(partial, path)
            _sync_directory(self.path)

    def _remove_old(self) -> None:
        if self.keep is None:
            return
        steps = self.steps()
        old = steps[: -self.keep]
        if old and not any(self._is_finite(step) for step in steps[-self.keep :]):
            finite = next((step for step in reversed(old) if self._is_finite(step)), None)
            old = [step for step in old if step != finite]
        for step in old:
            self.remove(step)

    def _is_finite(self, step: int) -> bool:
        try:
            return self.open(step).manifest.is_finite
        except DamagedError:
            return False

    def remove(self, step: int) -> None:
        """Removes a checkpoint. If the process dies meanwhile, the next one goes on removing it."""
        path = self.path_of(step)
        removed = self._unused(f"{path.name}.removed-{os.getpid()}")
        with contextlib.suppress(OSError):  # a file system that is read-only by now, for example
            os.rename(path, removed)
            shutil.rmtree(removed, ignore_errors=True)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps the directory for one training, whose earlier remains are removed.

        Raises:
            CheckpointError: if another training has it, or it cannot be made.
        """
        try:
            self._make()
            file = open(self.path / _LOCK, "a+", encoding="utf-8")  # noqa: SIM115 - closed below
        except OSError as error:
            raise CheckpointError(
                f"Checkpoints cannot be written to {self.path}: {error.strerror}. Name a directory "
                "in Checkpoint(directory) that can be made or written."
            ) from error
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the system ends it with us
            except BlockingIOError as error:
                file.seek(0)
                raise CheckpointError(
                    f"Another training writes checkpoints to {self.path}: "
                    f"{file.read().strip() or 'its process is not known'}. Give each training a "
                    "directory of its own in Checkpoint(directory), or wait for its end."
                ) from error
            file.truncate(0)
            file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
            file.flush()
            self._remove_unfinished()
            yield

    def _remove_unfinished(self) -> None:
        for path in self.path.glob("step-*.*-*"):
            if _UNFINISHED.fullmatch(path.name):
                shutil.rmtree(path, ignore_errors=True)


def _write(partial: pathlib.Path, snapshot: Snapshot) -> Manifest:
    partial.mkdir()
    arrays: list[np.ndarray] = []
    tree = [encode(snapshot.model, arrays, copy=False)]
    of_model = len(arrays)
    tree.append(encode(snapshot.others, arrays, copy=False))
    write_arrays(partial / ARRAYS, arrays)
    files = {}
    for path in sorted(partial.rglob("*")):
        if path.is_file():
            _sync(path)
            files[path.relative_to(partial).as_posix()] = checksum(path)
    manifest = Manifest(
        step=snapshot.step,
        epoch=snapshot.epoch,
        epoch_step=snapshot.epoch_step,
        kind=snapshot.kind,
        written=time.strftime("%Y-%m-%dT%H:%M:%S"),
        is_finite=all(_is_finite(array) for array in arrays[:of_model]),
        tree=tree,
        arrays=tuple((array.shape, array.dtype.name) for array in arrays),
        files=files,
    )
    with open(partial / MANIFEST, "x", encoding="utf-8") as file:
        file.write(manifest.to_text())
        file.flush()
        os.fsync(file.fileno())
    for path in (*partial.rglob("*"), partial):
        if path.is_dir():
            _sync_directory(path)
    # Read again, and not only trusted: a write may fall short without an error.
    if dataclasses.astuple(Manifest.read(partial))[:3] != dataclasses.astuple(manifest)[:3]:
        raise OSError("the manifest is not as it was written")
    return manifest


def _reason(error: Exception) -> str:
    """Returns why a write failed, in a few words."""
    text = str(error).strip()
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror} ({error.filename})" if error.filename else error.strerror
    for number in _NUMBERS:  # tensorstore puts the system's words behind its own
        if os.strerror(number) in text:
            return os.strerror(number)
    return text.splitlines()[0][:_LONGEST] if text else type(error).__name__


def _is_finite(array: np.ndarray) -> bool:
    if array.dtype.kind in "biu":
        return True
    if array.dtype.kind not in "fc":  # those of JAX
        array = array.astype(np.float32)
    # A sum is finite if all are, nearly always, and takes a fraction of the memory of a mask.
    with np.errstate(all="ignore"):
        return bool(np.isfinite(array.sum())) or bool(np.isfinite(array).all())


def _sync(path: pathlib.Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_directory(path: pathlib.Path) -> None:
    with contextlib.suppress(PermissionError):  # systems that open no directories
        _sync(path)
