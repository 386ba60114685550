"""A directory of checkpoints.

    step-00000120/               complete: it got this name when everything in it was on the disk
        checkpoint.json              the manifest
        arrays.safetensors           the arrays
    step-00000130.partial-4711/  being written, by process 4711
    step-00000120.replaced-4711/ complete: stands in for step-00000120 until another has this name
    step-00000110.removed-4711/  being removed
    step-00000100.damaged/       complete once, and not as it was written any more
    lock                         held by the training that writes here

A directory is renamed when all of its files are on the disk, so a name without an ending stands
for a complete checkpoint, whenever the process dies.
"""

import contextlib
import logging
import os
import pathlib
import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from millrace.base.checkpoints.directory_lock import locked_directory, owner_of
from millrace.base.checkpoints.manifest import DamagedError, Manifest
from millrace.base.checkpoints.stored import (
    Snapshot,
    StoredCheckpoint,
    readable,
    reason_of,
    sync_directory,
    write_snapshot,
)
from millrace.errors import CheckpointError

logger = logging.getLogger("millrace")

_NAME = re.compile(r"step-(\d+)")
_REPLACED = re.compile(r"step-(\d+)\.replaced-\d+(-\d+)?")
_UNFINISHED = re.compile(r"step-\d+\.(partial|removed)-\d+(-\d+)?")


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
        complete = set(self._complete().values())
        found = (path for path in self.path.glob("step-*.*") if path.name not in complete)
        return sorted(path for path in found if path.is_dir())

    def writer(self) -> str | None:
        """Returns the process that keeps the directory for its training; None if there is none."""
        return owner_of(self.path)

    def path_of(self, step: int) -> pathlib.Path:
        """Returns the directory of a checkpoint."""
        return self.path / self._complete().get(step, _name(step))

    def _complete(self) -> dict[int, str]:
        """Returns the names of the complete checkpoints by step."""
        with readable(self.path):
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

    def open(self, step: int) -> StoredCheckpoint:
        """Returns a checkpoint whose manifest is whole.

        Raises:
            DamagedError: if it is not.
            CheckpointError: if the system does not let it be read.
        """
        path = self.path_of(step)
        with readable(path):
            manifest = Manifest.read(path)
        if manifest.step != step:
            raise DamagedError(f"it is of step {manifest.step}")
        return StoredCheckpoint(path, manifest)

    def newest(self) -> tuple[StoredCheckpoint, tuple[Any, Any]] | None:
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
                f"{error}. Bring back a copy of one, or name another directory to begin a new "
                "training."
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
        with self._lock:
            partial: pathlib.Path | None = None
            try:
                self._make()
                partial = self._unused(f"step-{snapshot.step:08d}.partial-{os.getpid()}")
                manifest = write_snapshot(partial, snapshot)
                self._replace(partial, snapshot.step)
            except Exception as error:  # also of a value that is neither plain nor an array
                if partial is not None:
                    shutil.rmtree(partial, ignore_errors=True)
                raise CheckpointError(self._failure(snapshot.step, reason_of(error))) from error
            with contextlib.suppress(CheckpointError):  # the one that counts is written
                self._remove_old()
            return manifest

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
            "Make room or give permission there, and start again: the training continues from the "
            "newest complete checkpoint."
        )

    def _make(self) -> None:
        missing = [each for each in (self.path, *self.path.parents) if not each.exists()]
        self.path.mkdir(parents=True, exist_ok=True)
        for path in missing:
            sync_directory(path.parent)

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
        sync_directory(self.path)
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
        """Removes a checkpoint. If the process dies meanwhile, the next one removes the rest."""
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
        except OSError as error:
            raise CheckpointError(
                f"Checkpoints cannot be written to {self.path}: {error.strerror}. Name a directory "
                "that can be made or written."
            ) from error
        with locked_directory(self.path) as claim:
            self._remove_unfinished()  # first: the disk may be full of it
            claim()
            yield

    def _remove_unfinished(self) -> None:
        for path in self.path.glob("step-*.*-*"):
            match = _REPLACED.fullmatch(path.name)
            with contextlib.suppress(OSError):
                if match and (self.path / _name(int(match[1]))).exists():
                    shutil.rmtree(self._to_be_removed(path), ignore_errors=True)
                elif _UNFINISHED.fullmatch(path.name):
                    shutil.rmtree(path, ignore_errors=True)


def opened_checkpoint(
    directory: str | os.PathLike[str], step: int | None = None
) -> StoredCheckpoint:
    """Returns a checkpoint that the user has named, and changes nothing in the directory.

    Args:
        directory: of the checkpoints.
        step: of one of them; None is the newest.

    Raises:
        CheckpointError: if there is none, or its manifest is damaged.
    """
    checkpoints = CheckpointDirectory(directory)
    steps = checkpoints.steps()
    if not steps:
        raise CheckpointError(
            f"There are no checkpoints in {checkpoints.path}. Name the directory of a "
            "Checkpoint(directory)."
        )
    if step is None:
        step = steps[-1]
    if step not in steps:
        raise CheckpointError(
            f"There is no checkpoint of step {step} in {checkpoints.path}. There are those of "
            f"steps {', '.join(map(str, steps))}."
        )
    try:
        return checkpoints.open(step)
    except DamagedError as error:
        raise damaged(checkpoints.path_of(step), step, error) from error


def damaged(path: pathlib.Path, step: int, error: DamagedError) -> CheckpointError:
    """Returns the error of a damaged checkpoint, which names the other ones beside it."""
    directory = CheckpointDirectory(path.parent)
    others = [str(each) for each in directory.steps() if each != step]
    left = f"There are those of steps {', '.join(others)}" if others else "There is no other one"
    return CheckpointError(
        f"The checkpoint of step {step} in {directory.path} is damaged: {error}. {left}."
    )


def _name(step: int) -> str:
    return f"step-{step:08d}"
