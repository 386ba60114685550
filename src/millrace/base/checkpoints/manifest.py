"""The file `checkpoint.json` of a checkpoint: its values, and a checksum of each of its files."""

import dataclasses
import errno
import json
import pathlib
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

from millrace.base.checkpoints.arrays import ArrayLayout, dtype_of

FIT, LOOP = "fit", "loop"  # kinds of checkpoints
FORMAT, VERSION = "millrace checkpoint", 2
MANIFEST, ARRAYS = "checkpoint.json", "arrays.safetensors"
_LARGEST = 1 << 28  # bytes of a manifest that is read
# Errors of a process or of its rights, which say nothing about a file.
_NO_DAMAGE = (
    errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ESTALE,
    errno.ETIMEDOUT, errno.EINTR,
)  # fmt: skip


class DamagedError(ValueError):
    """A checkpoint that is not as it was written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a checkpoint holds, and the files that it is made of."""

    step: int  # steps of the training so far, over all epochs and calls of fit
    epoch: int  # the epoch that continues, from 0
    epoch_step: int  # steps of it that have run
    kind: str  # "fit" or "loop": what has written it
    written: str  # the time, as 2026-11-24T12:00:00
    is_finite: bool  # whether no value of the model is a NaN or infinite
    tree: Any  # all values, as `values.encode` writes them
    arrays: tuple[ArrayLayout, ...] = ()
    files: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # bytes and crc32 of each

    @property
    def nbytes(self) -> int:
        """Bytes of all its files but this one."""
        return sum(nbytes for nbytes, _ in self.files.values())

    def to_text(self) -> str:
        """Returns the content of the file."""
        fields = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        body = json.dumps({"format": FORMAT, "version": VERSION, **fields}, allow_nan=False)
        return f"{body}\n{zlib.crc32(body.encode()):08x}\n"

    @classmethod
    def read(cls, directory: pathlib.Path) -> "Manifest":
        """Reads the manifest of a checkpoint.

        Raises:
            DamagedError: if it is missing or is not as it was written.
            OSError: if the system does not let it be read.
        """
        path = directory / MANIFEST
        with damage_of(MANIFEST):
            if path.stat().st_size > _LARGEST:
                raise DamagedError(f"{MANIFEST} is larger than {_LARGEST:,} bytes")
            body, *end = path.read_text(encoding="utf-8", errors="replace").split("\n")
        if len(end) != 2:
            raise DamagedError(f"{MANIFEST} is not complete")
        if f"{zlib.crc32(body.encode()):08x}" != end[0]:
            raise DamagedError(f"{MANIFEST} does not match its checksum")
        try:
            return cls._of_json(json.loads(body))
        except (
            ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError,
        ) as error:  # fmt: skip
            raise DamagedError(f"{MANIFEST} is no manifest: {error!r}") from error

    @classmethod
    def _of_json(cls, values: dict[str, Any]) -> "Manifest":
        if values.pop("format") != FORMAT:
            raise ValueError(f"its format is not {FORMAT!r}")
        version = values.pop("version")
        if version != VERSION:
            raise ValueError(f"its version is {version}, and this millrace reads {VERSION}")
        for name in ("step", "epoch", "epoch_step"):
            if not _is_count(values[name]):
                raise ValueError(f"{name} is {values[name]!r}")
        if "tree" not in values:
            raise ValueError("it has no values")
        for name, kind in (("kind", str), ("written", str), ("is_finite", bool)):
            if not isinstance(values[name], kind):
                raise TypeError(f"{name} is {values[name]!r}")
        arrays = tuple(_layout(each) for each in values.pop("arrays"))
        files = {name: _file(name, each) for name, each in values.pop("files").items()}
        names = {each.name for each in dataclasses.fields(cls)}
        known = {name: value for name, value in values.items() if name in names}
        return cls(**known, arrays=arrays, files=files)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


def _layout(value: object) -> ArrayLayout:
    shape, dtype = cast(list[Any], value)
    if not isinstance(shape, list) or not all(map(_is_count, cast(list[object], shape))):
        raise ValueError(f"no shape is {str(shape)[:80]}")
    return tuple(cast(list[int], shape)), dtype_of(dtype).name


def _file(name: str, value: object) -> tuple[int, int]:
    nbytes, crc = cast(list[Any], value)
    # Names lead nowhere else: no "..", no absolute path.
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)*", name) or ".." in name.split("/"):
        raise ValueError(f"no file is called {name!r}")
    if not _is_count(nbytes) or not _is_count(crc):
        raise TypeError(f"{name} has {str(value)[:80]}")
    return nbytes, crc


def checksum(
    path: pathlib.Path, has_read: Callable[[int], object] | None = None
) -> tuple[int, int]:
    """Returns the bytes of a file and their crc32.

    Args:
        path: of the file.
        has_read: is called with each number of bytes that has been read.
    """
    nbytes = crc = 0
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            nbytes += len(chunk)
            crc = zlib.crc32(chunk, crc)
            if has_read is not None:
                has_read(len(chunk))
    return nbytes, crc


def check_files(
    directory: pathlib.Path,
    manifest: Manifest,
    contents: bool = True,
    has_read: Callable[[int], object] | None = None,
) -> None:
    """Compares the files of a checkpoint with its manifest.

    Args:
        directory: of the checkpoint.
        manifest: of it.
        contents: whether to compare checksums, too, for which all files are read.
        has_read: is called with each number of bytes that has been read.

    Raises:
        DamagedError: naming the first file that is missing or differs.
        OSError: if the system does not let one be read.
    """
    for name, (nbytes, crc) in manifest.files.items():
        path = directory / name
        with damage_of(name):
            found = checksum(path, has_read) if contents else (path.stat().st_size, crc)
        if found[0] != nbytes:
            raise DamagedError(f"{name} has {found[0]:,} bytes in place of {nbytes:,}")
        if found[1] != crc:
            raise DamagedError(f"{name} does not match its checksum")


@contextmanager
def damage_of(name: str) -> Iterator[None]:
    """Surrounds the reading of a file: one that is missing or cannot be read is damaged.

    Raises:
        DamagedError: in place of an error of the file.
        OSError: if it is one of the process or of its rights.
    """
    try:
        yield
    except FileNotFoundError as error:
        raise DamagedError(f"{name} is missing") from error
    except OSError as error:
        if error.errno in _NO_DAMAGE:
            raise
        raise DamagedError(f"{name} cannot be read: {error.strerror}") from error
