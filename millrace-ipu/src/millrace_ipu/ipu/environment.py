"""Environment variables of IPU programs, and the phrases of Poplar's log.

TF_POPLAR_FLAGS
    --executable_cache_path=DIR                 MILLRACE_CACHE_DIR=DIR, Strategy(cache_dir=DIR)
    --help                                      prints all flags
    all others                                  accepted, with a warning
POPLAR_LOG_LEVEL=INFO                           MILLRACE_LOG_LEVEL=INFO, logger millrace.phases
POPLAR_ENGINE_OPTIONS={"autoReport.all": ...}   a report of each program: engine_options.py
PVTI_OPTIONS                                    a warning
XLA_FLAGS                                       XLA reads it itself, at the first use of JAX

They are read when `millrace_ipu.ipu` is imported, when a system is configured, and before a
program is compiled: programs set them after the import, too.

Starting phase: graphConstruction               a program is compiled; by default "Compiling ..."
Loading executable, Ending phase: ...           it is on its devices; by default "Loaded ..."
"""

import logging
import os
import shlex
import threading

from millrace.errors import OptionError
from millrace.extend import (
    Phrases,
    ProgramListener,
    backends_are_initialized,
    cache_statistics,
    register_listener,
    show_phases,
    use_cache,
    use_phrases,
)
from millrace_ipu.ipu.program_reports import read_engine_options
from millrace_ipu.tensorflow.no_operation import warn_no_effect

logger = logging.getLogger("millrace")

VARIABLE = "TF_POPLAR_FLAGS"
LOG_VARIABLE = "POPLAR_LOG_LEVEL"
_VARIABLES = (VARIABLE, LOG_VARIABLE, "XLA_FLAGS")
CACHE = "executable_cache_path"
POPLAR_PHRASES = Phrases(
    compiling="Starting phase: graphConstruction",
    loaded=(
        "Loading executable",
        "Ending phase: Loading executable "
        "(duration %(milliseconds).0f ms; diff RSS: %(megabytes)f MB)",
    ),
)


def read_variables() -> None:
    """Reads the environment variables, and puts those in force that have changed.

    Raises:
        OptionError: for an unknown flag or level.
    """
    flags, level, _ = now = tuple(os.environ.get(name, "") for name in _VARIABLES)
    if os.environ.get("PVTI_OPTIONS"):
        warn_no_effect("PVTI_OPTIONS", _PROFILE)
    read_engine_options()
    with _lock:
        before = _in_force[0]
        if now == before:
            return
        if level != before[1]:
            show_phases(LOG_VARIABLE)
        path = cache_path(flags) if flags != before[0] else None
        if path is not None:
            use_cache(path)
        if now[2] != before[2] and backends_are_initialized():
            logger.warning(
                "XLA_FLAGS=%s has no effect: XLA has read this variable at the first use of JAX. "
                "Set it above everything that builds a model or an array.",
                now[2],
            )
        _in_force[0] = now


def cache_directory() -> str | None:
    """Returns the directory of this process's compile cache; None without a cache."""
    read_variables()
    directory = cache_statistics().directory
    return None if directory is None else str(directory)


def cache_path(text: str) -> str | None:
    """Returns the directory that `--executable_cache_path` gives; None without this flag.

    `--help` prints all flags; the other flags are reported as without effect.

    Args:
        text: the flags, with spaces between them.

    Raises:
        OptionError: for a flag that the IPU did not have either, with a list of its flags.
    """
    path = None
    for word in shlex.split(text):
        name, _, value = word.removeprefix("--").partition("=")
        if not word.startswith("--") or name not in FLAGS:
            raise OptionError(f"{VARIABLE} has the unknown flag {word!r}. Remove it.\n{usage()}")
        if name == CACHE:
            if not value:
                raise OptionError(
                    f"{VARIABLE} has {word!r}, without a directory. Set --{CACHE}=DIRECTORY."
                )
            path = value
        elif name == "help":
            print(usage())
        else:
            warn_no_effect(f"{VARIABLE}=--{name}", FLAGS[name])
    return path


def usage() -> str:
    """Returns a description of all flags, one per line."""
    width = max(map(len, FLAGS))
    rows = [f"  --{name:{width}}  {text}" for name, text in FLAGS.items()]
    return "\n".join([f"{VARIABLE} takes these flags; only the first one has an effect:", *rows])


_PROFILE = """Set POPLAR_ENGINE_OPTIONS='{"autoReport.all":"true"}'."""
_OTHERS = (
    "dump_schedule_as_dot", "fallback_scheduler", "ipu_model_tiles", "log_cycle_count",
    "max_compilation_threads", "max_infeed_threads", "null_data_feed",
    "on_demand_device_poll_time", "on_demand_device_timeout", "save_interval_report",
    "save_vertex_graph", "show_progress_bar", "synthetic_data_categories",
    "synthetic_data_initializer", "tensor_map_file_path", "use_ipu_model", "use_synthetic_data",
    "while_loop_brute_force_max_trip_count",
)  # fmt: skip
FLAGS = {
    CACHE: "Keeps executables in this directory, for other processes.",
    "help": "Prints these flags.",
    **dict.fromkeys(_OTHERS, "XLA_FLAGS and POPLAR_ENGINE_OPTIONS have what can be set here."),
}


class _Listener(ProgramListener):
    def before_lookup(self) -> None:
        read_variables()


_lock = threading.RLock()
_in_force: list[tuple[str, ...]] = [("", "", os.environ.get("XLA_FLAGS", ""))]
use_phrases(POPLAR_PHRASES)
register_listener(_Listener())
