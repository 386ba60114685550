"""Environment variables of IPU programs. They are read once, when `millrace.ipu` is imported.

TF_POPLAR_FLAGS="--executable_cache_path=DIR"   MILLRACE_CACHE_DIR, Strategy(cache_dir=)
POPLAR_LOG_LEVEL=INFO                           MILLRACE_LOG_LEVEL, logger millrace.phases
"""

import os

from millrace.cache.use import cache_statistics, use_cache
from millrace.compiling.phases import show_phases
from millrace.ipu.flags import VARIABLE, cache_path

LOG_VARIABLE = "POPLAR_LOG_LEVEL"


class _Environment:
    is_read = False


_environment = _Environment()


def read_once() -> None:
    """Does what the environment says, the first time that it is called.

    Raises:
        OptionError: for an unknown flag or level.
    """
    if _environment.is_read:
        return
    show_phases(LOG_VARIABLE)
    path = cache_path(os.environ.get(VARIABLE, ""))
    if path is not None:
        use_cache(path)
    _environment.is_read = True


def cache_directory() -> str | None:
    """Returns where this process keeps its executables; None if nowhere."""
    directory = cache_statistics().directory
    return None if directory is None else str(directory)
