"""Messages about work that takes long.

progress    one step: tracing, compiling    a line after a second, on a terminal and in the log
search      several programs in turn        a line that changes, on a terminal;
                                            elsewhere one after a second, and then every ten
"""

import contextlib
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator

import rich.markup
from rich.console import Console

logger = logging.getLogger("millrace")

SLOW_SECONDS = 1.0
BETWEEN_LINES, BETWEEN_CHANGES = 10.0, 0.2  # seconds, without a terminal and on one

_running: dict[object, str] = {}  # what searches do now, the outermost first


@contextlib.contextmanager
def progress(verb: str, what: str) -> Iterator[None]:
    """Surrounds a slow step; announces it after a second, unless a search that it is part of is."""
    timer = threading.Timer(SLOW_SECONDS, log_line, (f"{verb} {what} ...",))
    timer.daemon = True
    if not _running:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def log_line(line: str, is_choice: bool = False) -> None:
    """Logs a line at level INFO, and prints it if stderr is a terminal, or if it is a choice."""
    logger.info("%s", line)
    console = Console(stderr=True)
    if is_choice or console.is_terminal:  # someone is waiting; a log file has the line above
        console.print(line, style="dim", highlight=False, markup=False, soft_wrap=True)


@contextlib.contextmanager
def search(title: str) -> Iterator[Callable[[str], None]]:
    """Surrounds work that may take minutes, such as compiling several programs, and shows it.

    Yields:
        A function to call with what is done now. A search within another one is added to its line.
    """
    own, is_inner, ended = object(), bool(_running), threading.Event()
    thread = threading.Thread(target=_show, args=(ended,), name="millrace-search", daemon=True)

    def tick(what: str) -> None:
        _running[own] = f"{title}: {what}"

    _running[own] = title
    if not is_inner:
        thread.start()
    try:
        yield tick
    finally:
        del _running[own]
        ended.set()
        if not is_inner:
            thread.join()


def _show(ended: threading.Event) -> None:
    """Shows what runs until it has ended: on standard error, since output may go into a pipe."""
    begin, console, wait = time.perf_counter(), Console(stderr=True), SLOW_SECONDS
    status = console.status("")
    with contextlib.ExitStack() as shown:
        while not ended.wait(wait):
            texts = "; ".join(_running.copy().values())
            line = f"{texts} ... ({time.perf_counter() - begin:.0f} s)"
            if not console.is_terminal:
                print(line, file=sys.stderr, flush=True)
                wait = BETWEEN_LINES
                continue
            status.update(rich.markup.escape(line))
            if wait != BETWEEN_CHANGES:
                shown.enter_context(status)
                wait = BETWEEN_CHANGES
