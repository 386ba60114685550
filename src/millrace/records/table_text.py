"""Records that print as tables: on a console, and as text."""

from collections.abc import Callable

from rich.console import Console

_WIDTH = 110  # of a table that is not printed on a terminal


def show(print_on: Callable[[Console], None], console: Console | None) -> None:
    """Prints a record.

    Args:
        print_on: prints it on a console.
        console: None is standard output. One that is no terminal gets a fixed width.
    """
    console = console or Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_WIDTH, file=console.file)
    print_on(console)


def text_of(print_on: Callable[[Console], None]) -> str:
    """Returns the text that `print_on` prints on a console, without spaces at the ends of lines."""
    console = Console(highlight=False, width=_WIDTH, color_system=None, force_terminal=False)
    with console.capture() as capture:
        print_on(console)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())
