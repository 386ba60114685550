"""Listeners to the programs of this process: what is looked up, compiled and saved.

    class Sizes(ProgramListener):
        def compiled(self, record): print(record.program, record.peak_bytes)

    register_listener(Sizes())

They are called in the thread that compiles.
"""

import pathlib

from millrace.base.records.cache import EntryLabels
from millrace.base.records.compilation import CompileRecord


class ProgramListener:
    """Does nothing; a listener derives from it and overrides what it wants to know."""

    def before_lookup(self) -> None:
        """Is called before a program is looked up in the cache."""

    def key_suffix(self) -> str:
        """Returns a part of the keys of files in the cache; empty for the usual executables."""
        return ""

    def compiling(self, labels: EntryLabels) -> None:
        """Is called when XLA begins to compile a program."""

    def saved(self, labels: EntryLabels, path: pathlib.Path) -> None:
        """Is called when an executable is on disk."""

    def compiled(self, record: CompileRecord) -> None:
        """Is called with the record of each executable that will run, and of each switch."""


_listeners: tuple[ProgramListener, ...] = ()  # replaced as a whole: other threads iterate over it


def register_listener(listener: ProgramListener) -> None:
    """Calls a listener from now on."""
    global _listeners
    _listeners = (*_listeners, listener)


def unregister_listener(listener: ProgramListener) -> None:
    """Calls a listener no more."""
    global _listeners
    _listeners = tuple(each for each in _listeners if each is not listener)


def listeners() -> tuple[ProgramListener, ...]:
    """Returns all listeners, in the order in which they were registered."""
    return _listeners
