"""The directories that NaNWatch writes flights to by itself: their names, and how old ones go.

    <run directory>/flights/               newest 20
    <cache of the user>/flights/           newest 20, none older than 30 days
      classifier-update5-20261121-191202/  one flight

A flight holds a model and data of the user, and no run needs it later.
"""

import contextlib
import pathlib
import re
import time

from millrace.base.records.flight import FILES

FLIGHTS = "flights"  # in the directory of a run, and in the cache of the user
NEWEST = 20  # flights that stay in one of these
OLDEST = 30 * 86400.0  # seconds that they stay in the cache of the user
_NAME = re.compile(r"[\w.-]+-update\d+-\d{8}-\d{6}(-\d+)?")
_LONGEST = 80  # characters of a model's name


def make_flight(parent: pathlib.Path, model: str, update: int) -> pathlib.Path:
    """Makes a directory for a flight, which only its user can enter.

    Args:
        parent: that exists.
        model: its name.
        update: number of the update.

    Raises:
        OSError: if it cannot be made.
    """
    start = re.sub(r"[^\w-]", "_", model)[:_LONGEST] or "_"
    name = f"{start}-update{update}-{time.strftime('%Y%m%d-%H%M%S')}"
    for number in range(1, 1000):
        path = parent / (name if number == 1 else f"{name}-{number}")
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
            return path
    raise FileExistsError(f"{parent / name}")


def remove_old_flights(parent: pathlib.Path, oldest: float | None, kept: pathlib.Path) -> int:
    """Removes all flights but the newest, and nothing else: not a directory with another file.

    Args:
        parent: of the flights.
        oldest: seconds since they were written; None for any.
        kept: a flight that stays in any case.

    Returns:
        The number of flights removed.
    """
    found: list[tuple[float, str, pathlib.Path]] = []
    with contextlib.suppress(OSError):
        for path in parent.iterdir():
            is_named = _NAME.fullmatch(path.name) and path != kept and not path.is_symlink()
            if is_named and path.is_dir():
                with contextlib.suppress(OSError):  # another process removes it
                    found.append((path.stat().st_mtime, path.name, path))
    found.sort(reverse=True)
    before = 0.0 if oldest is None else time.time() - oldest
    removed = 0
    for number, (written, _, path) in enumerate(found, 2):  # the first one is `kept`
        if number > NEWEST or written < before:
            removed += _remove(path)
    return removed


def _remove(path: pathlib.Path) -> bool:
    try:
        files = list(path.iterdir())
        if any(file.name not in FILES for file in files):
            return False
        # The record first: without it, a directory that is removed by half is no flight.
        for file in sorted(files, key=lambda file: FILES.index(file.name)):
            file.unlink()
        path.rmdir()
    except OSError:
        return False
    return True
