"""Lines that say when a program is compiled, and when an executable comes onto its devices.

    Starting phase: graphConstruction                   XLA begins: nothing was kept that is equal
    Loading executable                                  it is there: compiled, read or shared
    Ending phase: Loading executable (duration 41 ms; diff RSS: 0.586426 MB)

At level INFO of the logger `millrace.phases`, which only `show_phases` lets through. What is read
from the cache has no first line, and a loop that is warm has none at all. XLA puts what it
compiles onto the devices as it compiles, so the duration is 0 ms there; and it holds many
executables, so taking turns loads nothing.
"""

import logging
import os

from millrace.errors import OptionError
from millrace.records.compilation import CompileRecord, Origin
from millrace.records.run import EntryLabels

logger = logging.getLogger("millrace.phases")
# `millrace` at INFO says the same once for each program, with its cause.
logger.setLevel(logging.WARNING)

VARIABLE = "MILLRACE_LOG_LEVEL"
# As C++ libraries name them, too.
LEVELS = {
    "TRACE": logging.DEBUG, "DEBUG": logging.DEBUG, "INFO": logging.INFO,
    "WARN": logging.WARNING, "WARNING": logging.WARNING, "ERR": logging.ERROR,
    "ERROR": logging.ERROR, "OFF": logging.CRITICAL,
}  # fmt: skip
_FORMAT = "%(asctime)s %(name)s %(levelname)s: %(message)s"


def show_phases(variable: str = VARIABLE) -> None:
    """Has the lines printed to stderr if an environment variable asks for its level.

    Args:
        variable: its name; a variable that is not set changes nothing.

    Raises:
        OptionError: if its value is no level.
    """
    told = os.environ.get(variable, "").strip()
    if not told:
        return
    level = LEVELS.get(told.upper())
    if level is None:
        raise OptionError(
            f"{variable}={told} is no level. Set it to one of {', '.join(LEVELS)}; INFO shows "
            "when programs are compiled and loaded."
        )
    logger.setLevel(level)
    if not logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter(_FORMAT))
        handler.addFilter(_nobody_else_prints)
        logger.addHandler(handler)


def begins(labels: EntryLabels) -> None:
    """XLA begins to compile a program."""
    logger.debug("compiling %s", labels.program)
    logger.info("Starting phase: graphConstruction")


def loaded(record: CompileRecord) -> None:
    """An executable is on its devices."""
    if not logger.isEnabledFor(logging.INFO):
        return
    milliseconds = 0.0 if record.origin is Origin.COMPILED else record.compile_seconds * 1000
    logger.info("Loading executable")
    logger.info(
        "Ending phase: Loading executable (duration %.0f ms; diff RSS: %f MB)",
        milliseconds,
        _resident.grown(),
    )


class _Resident:
    """Megabytes of memory that the process has."""

    def __init__(self) -> None:
        self._before = self._now()

    def grown(self) -> float:
        """Returns by how much it has grown since it was last asked; 0 where nothing tells."""
        before, self._before = self._before, self._now()
        return self._before - before

    def _now(self) -> float:
        try:
            with open("/proc/self/statm") as file:
                return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
        except (OSError, ValueError, IndexError, AttributeError):  # another operating system
            return 0.0


_resident = _Resident()


def _nobody_else_prints(_: logging.LogRecord) -> bool:
    parent = logger.parent
    return parent is None or not parent.hasHandlers()
