"""A directory of checkpoints.

    step-00000120/               complete: it got this name when everything in it was on the disk
        checkpoint.json              the manifest
        arrays/                      written by Orbax
    step-00000130.partial-4711/  being written, by process 4711
    step-00000120.replaced-4711/ complete: stands in for step-00000120 until another has this name
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
import io
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
    check_sizes,
    checksum,
)
from millrace.checkpoints.values import decode, encode
from millrace.errors import CheckpointError

logger = logging.getLogger("millrace")

_NAME = re.compile(r"step-(\d+)")
_REPLACED = re.compile(r"step-(\d+)\.replaced-\d+(-\d+)?")
_UNFINISHED = re.compile(r"step-\d+\.(partial|removed)-\d+(-\d+)?")
_LOCK = "lock"
_LOCK_SECONDS = 2.0  # to wait for a lock: a process that was killed may leave children that hold it
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
            CheckpointError: if the system does not let it be read.
        """
        with _readable(self.path):
            check_files(self.path, self.manifest)
            check_sizes(self.manifest)
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
        """Returns the steps of the complete checkpoints, in order, unverified.

        Raises:
            CheckpointError: if the system does not let the directory be read.
        """
        return sorted(self._complete())

    def remains(self) -> list[pathlib.Path]:
        """Returns the directories that are being written, being removed, or damaged."""
        return sorted(path for path in self.path.glob("step-*.*") if path.is_dir())

    def writer(self) -> str | None:
        """Returns the process that keeps the directory for its training; None if there is none."""
        try:
            file = open(self.path / _LOCK, encoding="utf-8")  # noqa: SIM115 - closed below
        except OSError:
            return None
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return file.read(_LONGEST).strip() or "a process that is not known"
        return None

    def path_of(self, step: int) -> pathlib.Path:
        """Returns the directory of a checkpoint."""
        return self.path / self._complete().get(step, _name(step))

    def _complete(self) -> dict[int, str]:
        """Returns the names of the complete checkpoints by step."""
        with _readable(self.path):
            try:
                names = os.listdir(self.path)
            except (FileNotFoundError, NotADirectoryError):
                return {}
        found: dict[int, str] = {}
        for pattern in (_REPLACED, _NAME):  # the latter are newer
            for match in filter(None, map(pattern.fullmatch, sorted(names))):
                step = int(match[1])
                if pattern is _REPLACED or match[0] == _name(step):
                    found[step] = match[0]
        return found

    def open(self, step: int) -> Checkpoint:
        """Returns a checkpoint whose manifest is whole.

        Raises:
            DamagedError: if it is not.
            CheckpointError: if the system does not let it be read.
        """
        path = self.path_of(step)
        with _readable(path):
            manifest = Manifest.read(path)
        if manifest.step != step:
            raise DamagedError(f"it is of step {manifest.step}")
        return Checkpoint(path, manifest)

    def newest(self) -> tuple[Checkpoint, tuple[Any, Any]] | None:
        """Returns the newest checkpoint that is as it was written, with its values.

        A damaged one is reported, and gets another name, since it would be in the way.

        Raises:
            CheckpointError: if there are some, and all are damaged, or if the system does not let
                one be read.
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
                name = self._set_aside(other)
                logger.warning(
                    "The checkpoint of step %d in %s is damaged: %s. %s that of step %d is used.",
                    other,
                    self.path,
                    error,
                    f"It is called {name} now, and" if name else "It cannot be renamed;",
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

    def _set_aside(self, step: int) -> str | None:
        """Gives a damaged checkpoint another name, which is returned; None if that fails."""
        try:
            aside = self._unused(f"{_name(step)}.damaged")
            os.rename(self.path_of(step), aside)
        except (OSError, CheckpointError):
            return None
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
                self._replace(partial, snapshot.step)
            except Exception as error:  # Orbax and its libraries have many
                failure = self._failure(snapshot.step, _reason(error))
            else:
                with contextlib.suppress(CheckpointError):  # the one that counts is written
                    self._remove_old()
                return manifest
            forget_failed_write()
            if partial is not None:
                shutil.rmtree(partial, ignore_errors=True)
            raise CheckpointError(failure)

    def _failure(self, step: int, reason: str) -> str:
        try:
            steps = self.steps()
            left = (
                f"The newest complete one is that of step {steps[-1]}" if steps else "There is none"
            )
        except CheckpointError:
            left = "Nothing can be read there"
        return (
            f"The checkpoint of step {step} could not be written to {self.path}: {reason}. {left}. "
            "Make room or give permission there, and start again: the training goes on from the "
            "newest complete checkpoint."
        )

    def _make(self) -> None:
        missing = [each for each in (self.path, *self.path.parents) if not each.exists()]
        # Private: a checkpoint has the weights, and samples of nobody else's business.
        self.path.mkdir(parents=True, exist_ok=True)
        for path in missing:
            _sync_directory(path.parent)

    def _unused(self, name: str) -> pathlib.Path:
        path, number = self.path / name, 0
        while path.exists():
            number += 1
            path = self.path / f"{name}-{number}"
        return path

    def _replace(self, partial: pathlib.Path, step: int) -> None:
        """Gives a complete checkpoint its name, and removes an earlier one of the same step.

        At each moment one of them is complete under a name that is known.
        """
        path = self.path / _name(step)
        replaced: pathlib.Path | None = None
        if path.exists():
            replaced = self._unused(f"{path.name}.replaced-{os.getpid()}")
            os.rename(path, replaced)
        os.rename(partial, path)
        _sync_directory(self.path)
        if replaced is not None:
            shutil.rmtree(self._to_be_removed(replaced), ignore_errors=True)

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
        with contextlib.suppress(OSError):  # a file system that is read-only by now, for example
            shutil.rmtree(self._to_be_removed(self.path_of(step)), ignore_errors=True)

    def _to_be_removed(self, path: pathlib.Path) -> pathlib.Path:
        """Renames a directory, so that no part of it is taken for a complete checkpoint."""
        step = path.name.partition(".")[0]
        removed = self._unused(f"{step}.removed-{os.getpid()}")
        os.rename(path, removed)
        return removed

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps the directory for one training, whose earlier remains are removed.

        Raises:
            CheckpointError: if another training has it, or it cannot be made.
        """
        try:
            self._make()
            file = open(self.path / _LOCK, "ab+", buffering=0)  # noqa: SIM115 - closed below
        except OSError as error:
            raise CheckpointError(
                f"Checkpoints cannot be written to {self.path}: {error.strerror}. Name a directory "
                "in Checkpoint(directory) that can be made or written."
            ) from error
        with file:
            if not _lock(file):
                file.seek(0)
                owner = file.read(_LONGEST).decode(errors="replace").strip()
                raise CheckpointError(
                    f"Another training writes checkpoints to {self.path}: "
                    f"{owner or 'its process is not known'}. Give each training a directory of its "
                    "own in Checkpoint(directory), or wait for its end."
                )
            self._remove_unfinished()  # first: the disk may be full of it
            with contextlib.suppress(OSError):
                file.truncate(0)
                file.write(f"process {os.getpid()} on {socket.gethostname()}\n".encode())
            yield

    def _remove_unfinished(self) -> None:
        for path in self.path.glob("step-*.*-*"):
            match = _REPLACED.fullmatch(path.name)
            with contextlib.suppress(OSError):
                if match and (self.path / _name(int(match[1]))).exists():
                    shutil.rmtree(self._to_be_removed(path), ignore_errors=True)
                elif _UNFINISHED.fullmatch(path.name):
                    shutil.rmtree(path, ignore_errors=True)


def _name(step: int) -> str:
    return f"step-{step:08d}"


@contextmanager
def _readable(path: pathlib.Path) -> Iterator[None]:
    """Reports errors of the process or of its rights, which say nothing about the files."""
    try:
        yield
    except (OSError, MemoryError) as error:
        raise CheckpointError(
            f"{path} cannot be read: {_reason(error)}. Give this process the right or the "
            "resources to read it, and start again."
        ) from error


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
