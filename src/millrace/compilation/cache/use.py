"""Executables on disk, so that another process need not compile them again.

    use_cache(directory)      where: argument > MILLRACE_CACHE_DIR > JAX's own option > default
    looking_up(labels)        whether one compilation was a hit              lookup.py
    known_keys(program)       keys of earlier programs of a name             keys.py
    cache_statistics()        contents, hits and misses
                              the files                                      files.py
                              one of them                                    entry.py
                              the store that JAX reads and writes            store.py

The process has one cache, as JAX has: functions of `jax.jit` and Keras's initialisers use it, too.
"""

import dataclasses
import enum
import logging
import os
import pathlib
import sys
import threading

from millrace._compat import jax_cache
from millrace.base.records.cache import CacheStatistics
from millrace.base.records.compilation import ProgramKey
from millrace.compilation.cache.files import environment
from millrace.compilation.cache.keys import read_keys
from millrace.compilation.cache.lookup import counts, current_lookup, listen
from millrace.compilation.cache.private import NotPrivateError, check_private
from millrace.compilation.cache.store import CacheStore
from millrace.errors import OptionError

logger = logging.getLogger("millrace")

VARIABLE = "MILLRACE_CACHE_DIR"
LIMIT_VARIABLE = "MILLRACE_CACHE_MAX_BYTES"
DEFAULT_LIMIT = 2 << 30  # bytes

_OFF = ("", "0", "off", "none")
_MOST_KEYS = 50


class Default(enum.Enum):
    """Stands for the directory that the environment names."""

    DIRECTORY = "default"

    def __repr__(self) -> str:
        return "<default>"


class _Cache:
    """The cache of this process."""

    def __init__(self):
        self.lock = threading.RLock()
        self.store: CacheStore | None = None
        self.is_explicit = False  # set by an argument, which a default does not change
        self.last_line = ""  # in the log


_cache = _Cache()


def use_cache(directory: str | os.PathLike[str] | Default | None = Default.DIRECTORY) -> None:
    """Has this process keep its executables on disk, or not.

    Args:
        directory: of the cache, or None for no cache. The default is the directory that the
            environment names, or that of an earlier call.

    Raises:
        OptionError: if `directory` is not a path, or MILLRACE_CACHE_MAX_BYTES not a number; or if
            other users can write to the directory of the argument or of MILLRACE_CACHE_DIR.
    """
    with _cache.lock:
        listen()
        if isinstance(directory, Default):
            if not _cache.is_explicit:
                _use(*_from_environment())
            return
        root = None if directory is None else _as_path(directory)
        if root is not None:
            _check_chosen(root, f"cache_dir={str(directory)!r}")
        _use(root, "" if root else "Executables are not cached: cache_dir=None.")
        _cache.is_explicit = True


def known_keys(program: str) -> list[ProgramKey]:
    """Returns the keys of earlier programs of this name, of all processes and versions.

    The last used come first; at most 50. Empty without a cache, or with one of JAX's own.
    """
    store = _cache.store
    return [] if store is None else read_keys(store.root, program, _MOST_KEYS)


def cache_statistics() -> CacheStatistics:
    """Returns the counts of files on disk, and the hits and misses of this process."""
    store = _cache.store
    if store is not None:
        statistics = store.statistics()
    else:
        own = jax_cache.directory_of_user()
        statistics = CacheStatistics(directory=pathlib.Path(own) if own else None)
    if statistics.directory is None:
        return statistics
    return dataclasses.replace(statistics, hits=counts.hits, misses=counts.requests - counts.hits)


def limit_of_environment() -> int:
    """Returns the limit of a cache on disk, in bytes.

    Raises:
        OptionError: if MILLRACE_CACHE_MAX_BYTES is not a number.
    """
    value = os.environ.get(LIMIT_VARIABLE, "").strip()
    if not value:
        return DEFAULT_LIMIT
    if not value.isdecimal() or not int(value):
        raise OptionError(
            f"{LIMIT_VARIABLE} must be a whole number of bytes, such as {DEFAULT_LIMIT} for 2 GiB. "
            f"Received: {value!r}. Set {VARIABLE}=off for no cache."
        )
    return int(value)


def _from_environment() -> tuple[pathlib.Path | None, str]:
    """Returns the root of a store of ours, or None and the reason."""
    value = os.environ.get(VARIABLE)
    if value is not None:
        if _is_off(value):
            return None, f"Executables are not cached: {VARIABLE}={value}."
        root = _as_path(value)
        _check_chosen(root, f"{VARIABLE}={value}")
        return root, ""
    own = jax_cache.directory_of_user()
    if own:
        return None, f"Executables are cached by JAX in {own}, as jax_compilation_cache_dir says."
    if not jax_cache.loads_quietly():
        return None, (
            f"Executables are not cached: jaxlib {jax_cache.jaxlib_version()} prints errors for "
            f"each that it loads on a CPU. Set {VARIABLE} or Strategy(cache_dir=...) to cache them "
            "all the same, or install jaxlib 0.10.2 or later."
        )
    root = _usual_root()
    if root is None:
        return None, f"Executables are not cached: there is no home directory. Set {VARIABLE}."
    try:
        check_private(root)
    except NotPrivateError as error:
        # Not an error: the user has not chosen this directory.
        line = (
            "Executables are not cached: they are code, and millrace would run those that another "
            f"user puts there. {error}, or set {VARIABLE} to another directory."
        )
        _say(line, logging.WARNING)
        return None, line
    return root, ""


def _check_chosen(root: pathlib.Path, choice: str) -> None:
    """Refuses a directory of the user's choice that other users can write.

    Raises:
        OptionError: if they can.
    """
    try:
        check_private(root)
    except NotPrivateError as error:
        raise OptionError(
            f"{choice} is refused: executables are code, and millrace would run those that another "
            f"user puts there. {error}, or choose another directory, such as a new one in it."
        ) from None


def _use(root: pathlib.Path | None, why_not: str) -> None:
    before = _cache.store
    if root is None:
        jax_cache.uninstall()
        _cache.store = None
        _say(why_not)
        return
    limit = limit_of_environment()
    if before is not None and (before.root, before.limit) == (root, limit):
        return
    _cache.store = CacheStore(root, limit, current_lookup)
    jax_cache.install(_cache.store, root / environment())
    counts.clear()
    moved = f", no longer in {before.root}" if before is not None and before.root != root else ""
    if not jax_cache.is_enabled():
        _say("Executables are not cached: JAX has jax_enable_compilation_cache=False.")
    else:
        _say(f"Executables of this process are cached in {root}{moved}.")


def _say(line: str, level: int = logging.INFO) -> None:
    if line != _cache.last_line:
        logger.log(level, "%s", line)
        _cache.last_line = line


def _as_path(directory: object) -> pathlib.Path:
    path = os.fspath(directory) if isinstance(directory, str | os.PathLike) else None
    if not isinstance(path, str) or not path.strip():
        raise OptionError(
            "cache_dir must be the path of a directory, or None for no cache. "
            f"Received: {directory!r}. Leave it out for the one that {VARIABLE} names, or the "
            "user's own."
        )
    return pathlib.Path(path).expanduser().absolute()


def _is_off(value: str) -> bool:
    return value.strip().lower() in _OFF


def _usual_root() -> pathlib.Path | None:
    try:
        if sys.platform == "darwin":
            return pathlib.Path.home() / "Library" / "Caches" / "millrace"
        xdg = pathlib.Path(os.environ.get("XDG_CACHE_HOME", ""))
        base = xdg if xdg.is_absolute() else pathlib.Path.home() / ".cache"
        return base / "millrace"
    except RuntimeError:  # a user without a home
        return None
