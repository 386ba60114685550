"""One checkpoint: its values are written to a directory, and read from it."""

import contextlib
import dataclasses
import errno
import os
import pathlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from millrace.checkpoints.arrays import read_arrays, write_arrays
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
class StoredCheckpoint:
    """One complete checkpoint."""

    path: pathlib.Path
    manifest: Manifest

    def values(self) -> tuple[Any, Any]:
        """Reads the values of the model, and all others.

        Raises:
            DamagedError: if it is not as it was written.
            CheckpointError: if the system does not let it be read.
        """
        with readable(self.path):
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


def write_snapshot(partial: pathlib.Path, snapshot: Snapshot) -> Manifest:
    """Writes a checkpoint into a directory, which is made, until it is on the disk.

    Raises:
        Exception: of many classes, of Orbax and its libraries, if it cannot be written.
    """
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
            sync_directory(path)
    # Read again, and not only trusted: a write may fall short without an error.
    if dataclasses.astuple(Manifest.read(partial))[:3] != dataclasses.astuple(manifest)[:3]:
        raise OSError("the manifest is not as it was written")
    return manifest


def reason_of(error: Exception) -> str:
    """Returns why a write or read failed, in a few words."""
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


def sync_directory(path: pathlib.Path) -> None:
    """Waits until the names in a directory are on the disk."""
    with contextlib.suppress(PermissionError):  # systems that open no directories
        _sync(path)


@contextmanager
def readable(path: pathlib.Path) -> Iterator[None]:
    """Reports errors of the process or of its rights, which say nothing about the files."""
    try:
        yield
    except (OSError, MemoryError) as error:
        raise CheckpointError(
            f"{path} cannot be read: {reason_of(error)}. Give this process the right or the "
            "resources to read it, and start again."
        ) from error
