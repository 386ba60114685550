"""The directories of flights, whose names say what they are of.

    <run directory>/flights/
      classifier-update5-20261121-191202/  one flight

A flight holds a model and data of the user.
"""

import contextlib
import pathlib
import re
import time

FLIGHTS = "flights"  # in the directory of a run
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
