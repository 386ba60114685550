"""The files of a cache: their places, and how they are written and removed.

<root>/
  0.10.2-cpu-1f3a0c9d/                jaxlib, platform, processor: see `environment`
    jit_run-<hash>.mrx                one executable
  keys/
    train_run-<digest>.key            the key of a program: see keys.py
"""

import contextlib
import hashlib
import os
import pathlib
import platform
import re
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass

from millrace._compat import jax_cache
from millrace.compilation.cache.entry import SUFFIX
from millrace.compilation.cache.private import make_private

KEYS = "keys"
KEY_SUFFIX = ".key"

_ENVIRONMENT = re.compile(r"[\w.+]+-[a-z]+-[0-9a-f]{8}")
_TEMPORARY = ".writing"
_ABANDONED_SECONDS = 3600.0  # after which the writer of a temporary file is gone
_LONGEST_NAME = 200  # bytes of a file's name; file systems end at 255


@dataclass(frozen=True, slots=True)
class File:
    """A file of the cache, unread."""

    name: str  # with its directories
    nbytes: int
    used: float  # seconds since 1970

    @property
    def path(self) -> pathlib.Path:
        """The path; not a field, since files may be many, and most are only counted."""
        return pathlib.Path(self.name)


def environment() -> str:
    """Returns the name of the directory for executables that this process can load.

    Executables of another jaxlib, or for a processor with other instructions, have crashed
    processes. So they are kept apart, although JAX's keys should differ.
    """
    flags = hashlib.sha256(_processor().encode()).hexdigest()[:8]
    return f"{jax_cache.jaxlib_version()}-{jax_cache.platform()}-{flags}"


def _processor() -> str:
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:  # of the first core; the others have the same
            name, _, value = line.partition(":")
            if name.strip() in ("flags", "Features"):
                return " ".join((platform.machine(), *sorted(value.split())))
    return f"{platform.machine()} {platform.processor()}"


def file_name(key: str) -> str:
    """Returns the file name of a key, with characters that every file system takes."""
    module, _, digest = re.sub(r"[^\w.-]", "_", key).rpartition("-")
    return f"{module[: _LONGEST_NAME - len(digest)]}-{digest}{SUFFIX}"


def files(root: pathlib.Path) -> Iterator[File]:
    """Yields all executables of a cache, of all versions, in no order."""
    for directory in _environments(root):
        yield from _files(directory, SUFFIX)


def key_files(root: pathlib.Path) -> Iterator[File]:
    """Yields the files of keys."""
    return _files(root / KEYS, KEY_SUFFIX)


def remove(path: pathlib.Path) -> bool:
    """Removes a file; returns whether this call has removed it."""
    try:
        path.unlink()
    except OSError:
        return False
    return True


def remove_abandoned(root: pathlib.Path) -> None:
    """Removes temporary files whose writers are gone."""
    before = time.time() - _ABANDONED_SECONDS
    for directory in (*_environments(root), root / KEYS):
        for file in _files(directory, _TEMPORARY):
            if file.used < before:
                remove(file.path)


def write(path: pathlib.Path, content: bytes) -> None:
    """Writes a file of a directory in the root; a reader sees all of it or nothing.

    Raises:
        OSError: if it cannot be written.
    """
    temporary = path.with_name(f".{os.getpid()}-{secrets.token_hex(8)}{_TEMPORARY}")
    try:
        try:
            _write_new(temporary, content)
        except FileNotFoundError:  # first of its directory, or another process cleared the cache
            make_private(path.parent)
            _write_new(temporary, content)
        os.replace(temporary, path)
    except OSError:
        remove(temporary)
        raise


def _write_new(path: pathlib.Path, content: bytes) -> None:
    """Writes a new file for this user alone, whatever the umask is."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


def _environments(root: pathlib.Path) -> list[pathlib.Path]:
    try:
        with os.scandir(root) as directory_entries:
            return [
                pathlib.Path(entry.path)
                for entry in directory_entries
                if _ENVIRONMENT.fullmatch(entry.name) and entry.is_dir()
            ]
    except OSError:
        return []


def _files(directory: pathlib.Path, suffix: str) -> Iterator[File]:
    try:
        with os.scandir(directory) as directory_entries:
            for entry in directory_entries:
                if entry.name.endswith(suffix):
                    with contextlib.suppress(OSError):  # another process has removed it
                        status = entry.stat()
                        yield File(entry.path, status.st_size, status.st_mtime)
    except OSError:
        return
