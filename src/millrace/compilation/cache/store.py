"""The store that JAX keeps executables in: files, verified when they are read.

    get   read, verify, and mark as used                  damaged: remove, a miss, one warning
    put   write to a temporary name, rename               failed: one warning, and no more writes
          beyond the limit: remove the least recently used

Nothing here raises: without a cache a run is slower, not wrong. Several threads and processes use
the same files without locks; a rename is atomic, and a file that is gone is a miss.
"""

import contextlib
import errno
import logging
import os
import pathlib
import threading
from collections.abc import Callable

from millrace.base.records.cache import CacheStatistics, EntryLabels
from millrace.compilation.cache import files as cache_files
from millrace.compilation.cache.entry import DamagedEntryError, pack, unpack
from millrace.compilation.cache.keys import remove_oldest, write_key
from millrace.compilation.cache.listeners import listeners
from millrace.compilation.cache.lookup import Lookup
from millrace.compilation.cache.private import NotPrivateError, read_private

logger = logging.getLogger("millrace")

_KEPT = 0.9  # of the limit, after a removal: the next write should not remove again
_UNSEEN = 0.125  # of the limit: writes after which files of other processes are counted, too

_REMEDY = (
    "set MILLRACE_CACHE_DIR or Strategy(cache_dir=...) to a directory that can be written, or "
    "MILLRACE_CACHE_DIR=off to do without."
)


class CacheStore:
    """Executables in the files of one directory."""

    def __init__(self, root: pathlib.Path, limit: int, lookup: Callable[[], Lookup | None]):
        """Prepares a store; touches no file.

        Args:
            root: the directory; made when the first file is written.
            limit: bytes of all files together.
            lookup: returns the lookup of this thread.
        """
        self.root = root
        self.limit = limit
        self._lookup = lookup
        self._lock = threading.Lock()
        self._environment = ""  # found when JAX has started its devices
        self._total: int | None = None  # bytes on disk; None until they are counted
        self._unseen = 0  # bytes written since then
        self._writes = True
        self._warned: set[str] = set()
        self._corrupt = 0
        self._evicted = 0

    def get(self, key: str) -> bytes | None:
        """Returns the executable of a key, or None."""
        payload = self._get(_own_key(key))
        lookup = self._lookup()
        if payload is None and lookup is not None:
            lookup.missed()
        return payload

    def _get(self, key: str) -> bytes | None:
        path = self._path(key)
        try:
            content = read_private(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except NotPrivateError as error:
            self._warn("private", f"{error}. Until then the program is compiled.")
            return None
        except OSError as error:
            self._warn(
                "read", f"{path} cannot be read: {error.strerror or error}. Remove it, or {_REMEDY}"
            )
            return None
        try:
            payload, layers = unpack(content, key, path.parent.name)
        except DamagedEntryError as error:
            self._remove_damaged(path, error)
            return None
        with contextlib.suppress(OSError):  # read-only
            os.utime(path)
        lookup = self._lookup()
        if lookup is not None:
            lookup.layers, lookup.entry = layers, payload
            self._keep_key(lookup.labels)
        return payload

    def put(self, key: str, value: bytes) -> None:
        """Keeps an executable, and removes others if there are too many bytes."""
        key = _own_key(key)
        path = self._path(key)
        lookup = self._lookup()
        labels = EntryLabels() if lookup is None else lookup.labels
        content = pack(key, path.parent.name, labels, value)
        if not self._writes or len(content) > self.limit:
            return
        try:
            cache_files.write(path, content)
        except OSError as error:
            self._stop_writing(error)
            return
        for listener in listeners():
            listener.saved(labels, path)
        self._keep_key(labels)
        self._evict_beyond_limit(len(content))

    def statistics(self) -> CacheStatistics:
        """Returns the counts of files on disk, and of the removals of this process."""
        sizes = [file.nbytes for file in cache_files.files(self.root)]
        return CacheStatistics(
            directory=self.root,
            entries=len(sizes),
            nbytes=sum(sizes),
            limit=self.limit,
            corrupt=self._corrupt,
            evicted=self._evicted,
        )

    def _path(self, key: str) -> pathlib.Path:
        if not self._environment:
            self._environment = cache_files.environment()
        return self.root / self._environment / cache_files.file_name(key)

    def _keep_key(self, labels: EntryLabels) -> None:
        if labels.key is not None:
            with contextlib.suppress(OSError):  # only a hint is lost
                write_key(self.root, labels.key)

    def _evict_beyond_limit(self, written: int) -> None:
        with self._lock:
            if self._total is not None:
                self._total += written
                self._unseen += written
                if self._total <= self.limit and self._unseen <= self.limit * _UNSEEN:
                    return
            self._total, evicted = evict(self.root, self.limit)
            self._unseen = 0
            self._evicted += evicted
        if evicted:
            logger.debug("removed %d executables from %s", evicted, self.root)

    def _remove_damaged(self, path: pathlib.Path, error: DamagedEntryError) -> None:
        gone = cache_files.remove(path) or not path.exists()  # or removed by another process
        with self._lock:
            self._corrupt += 1
        self._warn(
            "damaged",
            f"{path} cannot be used: {error}. It {'was' if gone else 'cannot be'} removed, and the "
            "program is compiled again. If this happens again, check the disk, or remove the "
            "directory.",
        )

    def _stop_writing(self, error: OSError) -> None:
        self._writes = False
        is_full = error.errno == errno.ENOSPC
        remedy = f"Free some space, or {_REMEDY}" if is_full else f"S{_REMEDY[1:]}"
        self._warn(
            "write",
            f"Compiled programs cannot be kept in {self.root}: {error.strerror or error}. This run "
            f"continues, and later ones will compile them again. {remedy}",
        )

    def _warn(self, what: str, message: str) -> None:
        with self._lock:
            if what in self._warned:
                return
            self._warned.add(what)
        logger.warning("%s", message)


def _own_key(key: str) -> str:
    """Returns a key of JAX with all else that tells executables apart."""
    return key + "".join(listener.key_suffix() for listener in listeners())


def evict(root: pathlib.Path, limit: int) -> tuple[int, int]:
    """Removes the least recently used files of a cache that is larger than its limit.

    Returns:
        The bytes that are left, and the number of executables removed.
    """
    cache_files.remove_abandoned(root)
    remove_oldest(root)
    all_files = list(cache_files.files(root))
    total = sum(file.nbytes for file in all_files)
    removed = 0
    if total > limit:
        for file in sorted(all_files, key=lambda file: file.used):
            if total <= limit * _KEPT:
                break
            removed += cache_files.remove(file.path)
            total -= file.nbytes
    return total, removed
