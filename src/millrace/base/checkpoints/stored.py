"""One checkpoint: its values are written to a directory, and read from it."""

import contextlib
import dataclasses
import os
import pathlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from millrace.base.checkpoints.arrays import read_arrays, write_arrays
from millrace.base.checkpoints.manifest import (
    ARRAYS,
    MANIFEST,
    DamagedError,
    Manifest,
    damage_of,
)
from millrace.base.checkpoints.plain_values import decode, encode
from millrace.errors import CheckpointError

_LONGEST = 300  # characters of an error


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
            try:
                model, others = decode(self.manifest.tree, self._arrays())
                return model, others
            except TypeError as error:
                raise DamagedError("it holds no values of a model") from error
            except (ValueError, RecursionError) as error:
                raise DamagedError(str(error)) from error

    def _arrays(self) -> list[np.ndarray]:
        """Reads the arrays, and compares them with their checksum at the same time."""
        with damage_of(ARRAYS):
            arrays, found = read_arrays(self.path / ARRAYS, self.manifest.arrays)
        if found != self.manifest.files.get(ARRAYS):
            raise DamagedError(f"{ARRAYS} does not match its checksum")
        return arrays


def write_snapshot(partial: pathlib.Path, snapshot: Snapshot) -> Manifest:
    """Writes a checkpoint into a directory, which is made, until it is on the disk.

    Raises:
        OSError: if it cannot be written.
        NotPlainError: if it holds a value that is neither plain nor an array.
    """
    partial.mkdir()
    arrays: list[np.ndarray] = []
    tree = [encode(snapshot.model, arrays)]
    of_model = len(arrays)
    tree.append(encode(snapshot.others, arrays))
    manifest = Manifest(
        step=snapshot.step,
        epoch=snapshot.epoch,
        epoch_step=snapshot.epoch_step,
        kind=snapshot.kind,
        written=time.strftime("%Y-%m-%dT%H:%M:%S"),
        is_finite=all(_is_finite(array) for array in arrays[:of_model]),
        tree=tree,
        arrays=tuple((array.shape, array.dtype.name) for array in arrays),
        files={ARRAYS: write_arrays(partial / ARRAYS, arrays)},
    )
    with open(partial / MANIFEST, "x", encoding="utf-8") as file:
        file.write(manifest.to_text())
        file.flush()
        os.fsync(file.fileno())
    sync_directory(partial)
    # Read again, and not only trusted: a write may fall short without an error.
    if dataclasses.astuple(Manifest.read(partial))[:3] != dataclasses.astuple(manifest)[:3]:
        raise OSError("the manifest is not as it was written")
    return manifest


def reason_of(error: Exception) -> str:
    """Returns why a write or read failed, in a few words."""
    text = str(error).strip()
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror} ({error.filename})" if error.filename else error.strerror
    return text.splitlines()[0][:_LONGEST] if text else type(error).__name__


def _is_finite(array: np.ndarray) -> bool:
    if array.dtype.kind in "biu":
        return True
    if array.dtype.kind not in "fc":  # those of JAX
        array = array.astype(np.float32)
    # A sum is finite if all are, nearly always, and takes a fraction of the memory of a mask.
    with np.errstate(all="ignore"):
        return bool(np.isfinite(array.sum())) or bool(np.isfinite(array).all())


def sync_directory(path: pathlib.Path) -> None:
    """Waits until the names in a directory are on the disk."""
    with contextlib.suppress(PermissionError):  # systems that open no directories
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


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
