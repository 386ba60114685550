"""Records that print as tables: on a console, as text, and in notebooks."""

from collections.abc import Callable
from typing import Any

from rich.console import Console

_WIDTH = 110  # of a table that is not printed on a terminal


class TextRecord:
    """A record that notebooks show as `print` does, instead of all its fields."""

    __slots__ = ()

    def _repr_pretty_(self, printer: Any, is_cyclic: bool) -> None:
        """Called by IPython."""
        printer.text(str(self))


class TableRecord(TextRecord):
    """A record that prints itself on a console."""

    __slots__ = ()
    _print: Callable[[Console], None]  # a method that each kind of record defines

    def show(self, console: Console | None = None) -> None:
        """Prints it on a console; None is standard output."""
        console = console or Console(highlight=False)
        if not console.is_terminal:
            console = Console(highlight=False, width=_WIDTH, file=console.file)
        self._print(console)

    def __str__(self) -> str:
        return text_of(self._print)


def text_of(print_on: Callable[[Console], None]) -> str:
    """Returns the text that `print_on` prints on a console, without spaces at the ends of lines."""
    console = Console(highlight=False, width=_WIDTH, color_system=None, force_terminal=False)
    with console.capture() as capture:
        print_on(console)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())
