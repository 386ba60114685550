"""The one way from a program that is wanted to its executable.

    wanted -> exported by another process?    loaded: nothing is traced
           -> traced and lowered
              equal to an earlier one?        shared
              on disk?                        read
              neither                         compiled
    executable -> registered for export

Files are loaded, and XLA compiles, in threads. Tracing and lowering are Python and go one after
another beside them.
"""

import logging
from collections.abc import Hashable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from millrace.base.interrupts import raise_if_interrupted
from millrace.compilation.executables.executable import Executable, finish
from millrace.compilation.executables.log import CompileLog
from millrace.compilation.executables.lowering import lower
from millrace.compilation.executables.wanted import Wanted
from millrace.compilation.export.exporting import Exports
from millrace.errors import RecompilationError

logger = logging.getLogger("millrace")

_LOADING = 4  # threads
_COMPILING = 16  # threads: some wait for another one that compiles an equal program

Name = TypeVar("Name", bound=Hashable)


class ProgramFinder:
    """Finds the executables of programs."""

    def __init__(self, log: CompileLog, exports: Exports | None = None):
        """Makes a finder.

        Args:
            log: gets a record of each executable.
            exports: executables of other processes, and those that they will get; None for
                programs that no other process can use.
        """
        self._log, self._exports = log, exports

    def find(self, wanted: Wanted) -> Executable:
        """Returns the executable of a program.

        A step that takes longer than a second is announced: on a terminal, and to the `millrace`
        logger at level INFO.

        Raises:
            RecompilationError: if it is a recompilation, and the log refuses those.
        """
        executable = self._loaded(wanted)
        if executable is None:
            _raise_if_interrupted(wanted)
            lowering = lower(wanted, self._log)
            _raise_if_interrupted(wanted)  # XLA cannot be
            executable = finish(lowering, self._log)
        if self._exports is not None:
            self._exports.made(wanted, executable)
        return executable

    def find_all(self, wanted: Mapping[Name, Wanted]) -> dict[Name, Executable]:
        """Returns the executables of programs, by the same names, found at the same time.

        Where one does not compile it is left out, with all others that were to be compiled: `find`
        raises its error.

        Raises:
            RecompilationError: as `find`.
        """
        found: dict[Name, Executable] = {}
        if self._exports is not None and not self._exports.loaded.is_empty:
            with ThreadPoolExecutor(_LOADING, "millrace-load") as pool:
                loaded = zip(wanted, pool.map(self._loaded, wanted.values()), strict=True)
                found = {name: executable for name, executable in loaded if executable is not None}
        try:
            found |= self._compiled({name: w for name, w in wanted.items() if name not in found})
        except RecompilationError:
            raise
        except Exception as error:
            logger.debug("compiling programs one by one: %s", error)
        if self._exports is not None:
            for name, executable in found.items():
                self._exports.made(wanted[name], executable)
        return found

    def _loaded(self, wanted: Wanted) -> Executable | None:
        exports = self._exports
        return None if exports is None else exports.loaded.executable(wanted, self._log)

    def _compiled(self, wanted: Mapping[Name, Wanted]) -> dict[Name, Executable]:
        with ThreadPoolExecutor(_COMPILING, "millrace-compile") as pool:
            running = {}
            for name, each in wanted.items():
                _raise_if_interrupted(each)
                running[name] = pool.submit(finish, lower(each, self._log), self._log)
            return {name: each.result() for name, each in running.items()}


def _raise_if_interrupted(wanted: Wanted) -> None:
    """Raises a Ctrl-C that waits; not in a user's loop, which may hold values until it ends."""
    if wanted.model is not None:
        raise_if_interrupted()
