"""Private JAX: the cache of executables between processes. Checked on jax 0.10.0, 0.10.2, 0.12.0.1.

JAX makes the keys and turns executables into bytes; where these lie is a module variable of its
`compilation_cache`, and no public call sets it. Its own files are not written atomically, and a
damaged one is never replaced.
"""

import pathlib
import threading
from types import SimpleNamespace
from typing import Any, Protocol

import jax
import jaxlib.version
from jax._src import compilation_cache as private
from jax.experimental.compilation_cache import compilation_cache as public

from millrace._compat.jax_processes import backends_are_initialized
from millrace._compat.patch_table import COMPILATION_CACHE
from millrace._compat.patches import put_in, take_out

_DIRECTORY = "jax_compilation_cache_dir"
_OPTIONS = {
    # The default of 1 second leaves out Keras's initialisers, which are half of the start.
    "jax_persistent_cache_min_compile_time_secs": 0.0,
    "jax_persistent_cache_min_entry_size_bytes": -1,
    # Otherwise the directory is part of the keys, and a cache that was moved is lost.
    "jax_persistent_cache_enable_xla_caches": "none",
}
_QUIET_SINCE = (0, 10, 2)

_lock = threading.Lock()
_before: dict[str, object] = {}  # options of JAX before ours, while a store of ours is installed
_ours: dict[str, object] = {}


class Store(Protocol):
    """A place for the bytes of executables. Neither call may raise."""

    def get(self, key: str) -> bytes | None:
        """Returns the bytes of a key, or None."""
        ...

    def put(self, key: str, value: bytes) -> None:
        """Keeps `value` under a key."""
        ...


def loads_quietly() -> bool:
    """Whether loading an executable prints nothing to stderr.

    jaxlib before 0.10.2 prints lines about "+prefer-no-gather" for each that is loaded on a CPU,
    beyond the reach of Python. Does not start JAX's devices: until they are started, they count as
    CPUs unless the options of JAX name another platform.
    """
    if _numbers(jaxlib_version()) >= _QUIET_SINCE:
        return True
    return platform() != "cpu"


def jaxlib_version() -> str:
    """Returns the version of the compiler's package; no public module has it."""
    return jaxlib.version.__version__


def platform() -> str:
    """Returns the default platform, without starting JAX's devices."""
    if backends_are_initialized():
        return jax.default_backend()
    config: Any = jax.config  # which declares its options when it runs
    return (config.jax_platforms or "cpu").split(",")[0]


def directory_of_user() -> str | None:
    """Returns the directory in which the user has JAX keep executables, if any."""
    directory = getattr(jax.config, _DIRECTORY)
    with _lock:
        return None if directory == _ours.get(_DIRECTORY) else directory


def is_enabled() -> bool:
    """Whether JAX uses a cache on disk."""
    config: Any = jax.config
    return bool(config.jax_enable_compilation_cache)


def asks_any() -> bool:
    """Whether JAX will look up its next compilation, in a store or in its own files."""
    return is_enabled() and bool(getattr(jax.config, _DIRECTORY))


def install(store: Store, directory: pathlib.Path) -> None:
    """Has JAX keep executables in `store`, from the next compilation on.

    Args:
        store: of all executables of this process.
        directory: of the store, for JAX's options and its log.
    """
    uninstall()
    options = {**_OPTIONS, _DIRECTORY: str(directory)}
    with _lock:
        _before.update({name: getattr(jax.config, name) for name in options})
        _ours.update(options)
        for name, value in options.items():
            jax.config.update(name, value)
        public.reset_cache()  # it may hold files of another directory
        with private._cache_initialized_mutex:
            # JAX reads `_path` for its own log.
            adapter: Any = SimpleNamespace(get=store.get, put=store.put, _path=directory)
            private._cache = adapter
            private._cache_initialized = True
    put_in(COMPILATION_CACHE, _restore)


def uninstall() -> None:
    """Restores what JAX did before `install`. Options that were changed since stay."""
    take_out(COMPILATION_CACHE)


def _restore() -> None:
    with _lock:
        for name, value in _before.items():
            if getattr(jax.config, name) == _ours[name]:
                jax.config.update(name, value)
        _before.clear()
        _ours.clear()
        public.reset_cache()


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:3] if part.isdigit())
