"""Lines that say when a program is compiled, and when an executable comes onto its devices.

    Compiling train_run                                 XLA begins: no equal program was kept
    Loaded train_run (41 ms; process +0.6 MB)           it is there: compiled, read or shared

At level INFO of the logger `millrace.phases`, which only `show_phases` lets through. An executable
that is read from the cache has no first line, and a loop that is warm has none at all. XLA puts
what it compiles onto the devices as it compiles, so the time is 0 ms there; and it holds many
executables, so switching between them loads nothing.

`use_phrases` replaces the words, for programs whose users know others.
"""

import logging
import os
from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class Phrases:
    """What is logged. `%(program)s` stands for the name of the program.

    `%(milliseconds)f` is the time that loading took, and `%(megabytes)f` by how much the process
    has grown since the last line of this kind.
    """

    compiling: str = "Compiling %(program)s"
    loaded: tuple[str, ...] = (
        "Loaded %(program)s (%(milliseconds).0f ms; process %(megabytes)+.1f MB)",
    )


class _Current:
    phrases = Phrases()


def use_phrases(phrases: Phrases) -> None:
    """Replaces the words of the lines, in all of the process."""
    _Current.phrases = phrases


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
    logger.info(_Current.phrases.compiling, {"program": labels.program})


def loaded(record: CompileRecord) -> None:
    """An executable is on its devices."""
    if not logger.isEnabledFor(logging.INFO):
        return
    values = {
        "program": record.program,
        "milliseconds": 0.0 if record.origin is Origin.COMPILED else record.compile_seconds * 1000,
        "megabytes": _resident.grown(),
    }
    for phrase in _Current.phrases.loaded:
        logger.info(phrase, values)


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
