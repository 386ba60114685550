"""What is said of work that takes long.

progress     one step: tracing, compiling     a line after a second, on a terminal and in the log
search       several programs in turn         a line that changes, on a terminal;
                                              elsewhere one after a second, and then every ten
"""

import contextlib
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator

import rich.console
import rich.markup

logger = logging.getLogger("millrace")

SLOW_SECONDS = 1.0
BETWEEN_LINES, BETWEEN_CHANGES = 10.0, 0.2  # seconds, without a terminal and on one

_running: dict[object, str] = {}  # what those that run now do, the outermost first


@contextlib.contextmanager
def progress(verb: str, what: str) -> Iterator[None]:
    """Surrounds a slow step; announces it after a second, on a terminal and in the log."""
    if _running:  # of which it is a part
        yield
        return
    timer = threading.Timer(SLOW_SECONDS, log_line, (f"{verb} {what} ...",))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def log_line(line: str) -> None:
    """Logs a line at level INFO, and prints it if stderr is a terminal."""
    logger.info("%s", line)
    console = rich.console.Console(stderr=True)
    if console.is_terminal:  # someone is waiting; a log file has the line above
        console.print(line, style="dim", highlight=False, markup=False)


@contextlib.contextmanager
def search(title: str) -> Iterator[Callable[[str], None]]:
    """Surrounds work on several programs, which may take minutes, and shows that it goes on.

    Yields:
        A function to call with what is done now. Of a search within another one it is added to
        the line of that one.
    """
    own, is_outermost, ended = object(), not _running, threading.Event()
    _running[own] = title
    console, begin = rich.console.Console(stderr=True), time.perf_counter()

    def tick(what: str) -> None:
        _running[own] = f"{title}: {what}"

    def show() -> None:
        wait = SLOW_SECONDS
        while not ended.wait(wait):
            seconds = time.perf_counter() - begin
            line = f"{'; '.join(_running.copy().values())} ... ({seconds:.0f} s)"
            if console.is_terminal:
                status.update(rich.markup.escape(line))
                wait = BETWEEN_CHANGES
            elif logger.isEnabledFor(logging.INFO):
                logger.info("%s", line)
                wait = BETWEEN_LINES
            else:
                print(line, file=sys.stderr, flush=True)
                wait = BETWEEN_LINES

    status = console.status(rich.markup.escape(f"{title} ..."))
    thread = threading.Thread(target=show, name="millrace-progress", daemon=True)
    try:
        with contextlib.ExitStack() as shown:
            if is_outermost:
                thread.start()
                shown.callback(thread.join)
                shown.callback(ended.set)
                if console.is_terminal:
                    shown.enter_context(status)
            yield tick
    finally:
        del _running[own]
