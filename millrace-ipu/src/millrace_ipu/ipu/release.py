"""The release of the IPU's software whose rules programs follow, where releases differ.

MILLRACE_IPU_RELEASE=2.4        steps_per_execution counts the batches of all replicas
unset, or 2.5 and later         steps_per_execution counts the batches of one replica

A program that uses names which release 2.4 removed is one of an earlier release. The variable is
read at the start of each loop, so that a program may set it; `millrace run --release 2.4` does.
"""

import os
import re

from millrace.errors import OptionError

VARIABLE = "MILLRACE_IPU_RELEASE"
NEWEST: tuple[int, int] = (3, 3)
_COUNTS_ONE_REPLICA = (2, 5)
_shown: list[tuple[int, int]] = [NEWEST]  # by the names that the program uses


def release() -> tuple[int, int]:
    """Returns the release that the environment names, or that the program's names show.

    Raises:
        OptionError: if it is no release.
    """
    text = os.environ.get(VARIABLE, "").strip()
    if not text:
        return _shown[-1]
    match = re.fullmatch(r"(\d+)\.(\d+)(\.\d+)?", text)
    if match is None or not (1, 0) <= (int(match[1]), int(match[2])) <= NEWEST:
        raise OptionError(
            f"{VARIABLE} is a release of the IPU's software from 1.0 to "
            f"{'.'.join(map(str, NEWEST))}. Received: {text!r}. Set it to 2.4 for programs whose "
            "steps_per_execution counts the batches of all replicas, and unset it for later ones."
        )
    return int(match[1]), int(match[2])


def uses_old_names() -> None:
    """Notes that the program uses names which release 2.4 removed."""
    _shown[:] = [(2, 3)]


def reset_release() -> None:
    """Forgets the names that a program has used."""
    _shown[:] = [NEWEST]


def counts_one_replica() -> bool:
    """Whether `steps_per_execution` counts the batches of one replica, not of all together."""
    return release() >= _COUNTS_ONE_REPLICA
