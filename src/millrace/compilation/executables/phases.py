"""Log lines at the compilation of a program, and when its executable is on its devices.

    Compiling train_run                                 XLA begins: no equal program exists
    Loaded train_run (41 ms; process +0.6 MB)           done: compiled, read or shared

They have level INFO of the logger `millrace.phases`; `show_phases` enables them. An executable that
is read from the cache has no first line, and a loop that has run before has no lines. XLA loads a
program as part of compiling it, so the time is 0 ms there; and the devices hold many executables,
so a switch between them loads nothing.

`use_phrases` replaces the words, for users who know others.
"""

import logging
import os
from dataclasses import dataclass

from millrace.base.records.cache import EntryLabels
from millrace.base.records.compilation import CompileRecord, Origin
from millrace.compilation.cache.listeners import ProgramListener, register_listener
from millrace.errors import OptionError

logger = logging.getLogger("millrace.phases")
# `millrace` at INFO says the same once for each program, with its cause.
logger.setLevel(logging.WARNING)

VARIABLE = "MILLRACE_LOG_LEVEL"
# With the names that C++ libraries use.
LEVELS = {
    "TRACE": logging.DEBUG, "DEBUG": logging.DEBUG, "INFO": logging.INFO,
    "WARN": logging.WARNING, "WARNING": logging.WARNING, "ERR": logging.ERROR,
    "ERROR": logging.ERROR, "OFF": logging.CRITICAL,
}  # fmt: skip
_FORMAT = "%(asctime)s %(name)s %(levelname)s: %(message)s"


@dataclass(frozen=True, slots=True)
class Phrases:
    """The text of the lines. `%(program)s` stands for the name of the program.

    `%(milliseconds)f` is the time of loading, and `%(megabytes)f` the growth of the process since
    the last line of this kind.
    """

    compiling: str = "Compiling %(program)s"
    loaded: tuple[str, ...] = (
        "Loaded %(program)s (%(milliseconds).0f ms; process %(megabytes)+.1f MB)",
    )


class _Current:
    phrases = Phrases()


def use_phrases(phrases: Phrases) -> None:
    """Replaces the words of the lines, for the whole process."""
    _Current.phrases = phrases


def show_phases(variable: str = VARIABLE) -> None:
    """Prints the lines to stderr if an environment variable asks for their level.

    Args:
        variable: its name; without the variable nothing changes.

    Raises:
        OptionError: if its value is not a level.
    """
    value = os.environ.get(variable, "").strip()
    if not value:
        return
    level = LEVELS.get(value.upper())
    if level is None:
        raise OptionError(
            f"{variable}={value} is not a level. Set it to one of {', '.join(LEVELS)}; INFO shows "
            "when programs are compiled and loaded."
        )
    logger.setLevel(level)
    if not logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter(_FORMAT))
        handler.addFilter(_nobody_else_prints)
        logger.addHandler(handler)


class _Begin(ProgramListener):
    def compiling(self, labels: EntryLabels) -> None:
        """Logs that XLA begins to compile a program."""
        logger.info(_Current.phrases.compiling, {"program": labels.program})


register_listener(_Begin())


def loaded(record: CompileRecord) -> None:
    """Logs that an executable is on its devices."""
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
    """The resident memory of the process, in megabytes."""

    def __init__(self) -> None:
        self._before = self._now()

    def grown(self) -> float:
        """Returns the growth since the last call; 0 where it is not known."""
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
