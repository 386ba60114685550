"""The executables on disk, and the use of them."""

import pathlib
from dataclasses import dataclass

from millrace.base.records.compilation import ProgramKey


@dataclass(frozen=True, slots=True)
class EntryLabels:
    """The description of an executable in the user's words; not used to look it up."""

    model: str = ""
    program: str = ""  # such as "train_run"; empty if millrace did not ask for it
    batch: str = ""
    key: ProgramKey | None = None
    layers: tuple[
        str, ...
    ] = ()  # names of the model's layers, in order; XLA's operations have them


@dataclass(frozen=True, slots=True)
class CacheStatistics:
    """The contents of a cache of executables, and its use by this process."""

    directory: pathlib.Path | None  # None without a cache
    entries: int = 0  # on disk, of all versions
    nbytes: int = 0  # on disk
    limit: int = 0  # bytes, beyond which the least recently used are removed; 0 is no limit
    hits: int = 0  # executables that were read instead of compiled
    misses: int = 0
    corrupt: int = 0  # files that were removed because they were damaged
    evicted: int = 0  # files that this process removed for the limit
