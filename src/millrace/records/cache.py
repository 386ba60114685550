"""The executables that are kept on disk, and how often they served."""

import pathlib
from dataclasses import dataclass

from millrace.records.compilation import ProgramKey


@dataclass(frozen=True, slots=True)
class EntryLabels:
    """What an executable is, in the user's words. Nothing finds it by these."""

    model: str = ""
    program: str = ""  # such as "train_run"; empty for what millrace has not asked for
    batch: str = ""
    key: ProgramKey | None = None
    layers: tuple[str, ...] = ()  # names of the model's, in order: XLA's operations bear them


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """One file with an executable, on disk."""

    path: pathlib.Path
    nbytes: int
    used: float  # seconds since 1970, of its last use
    module: str = ""  # JAX's name of it, such as "jit_run"
    model: str = ""
    program: str = ""
    batch: str = ""
    created: float = 0.0  # seconds since 1970

    @property
    def environment(self) -> str:
        """Version, platform and processor that it was made for."""
        return self.path.parent.name


@dataclass(frozen=True, slots=True)
class CacheStatistics:
    """What a cache of executables holds, and what it did for this process."""

    directory: pathlib.Path | None  # None without a cache
    entries: int = 0  # on disk, of all versions
    nbytes: int = 0  # on disk
    limit: int = 0  # bytes, beyond which the least recently used are removed; 0 is none
    hits: int = 0  # executables that were read in place of compiling them
    misses: int = 0
    corrupt: int = 0  # files that were removed because they were not what was written
    evicted: int = 0  # files that this process removed for the limit
