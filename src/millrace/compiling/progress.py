"""Says that a compilation is going on, once it takes long."""

import contextlib
import logging
import threading
from collections.abc import Iterator

import rich.console

logger = logging.getLogger("millrace")

SLOW_SECONDS = 1.0


@contextlib.contextmanager
def progress(doing: str, what: str) -> Iterator[None]:
    """Surrounds what may take long; says so after a second, on a terminal and to the log."""
    timer = threading.Timer(SLOW_SECONDS, _announce, (f"{doing} {what} ...",))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _announce(line: str) -> None:
    logger.info("%s", line)
    console = rich.console.Console(stderr=True)
    if console.is_terminal:  # someone is waiting; a log file has the line above
        console.print(line, style="dim", highlight=False, markup=False)
