"""Private asyncio: the tasks of all event loops. Checked on Python 3.11, 3.12 and 3.13.

`asyncio.all_tasks` knows those of one loop. `gc.get_objects` would find them all, and would let
`tuple(generator)` fail in another thread, with a SystemError, if it sees the unfinished tuple.
"""

import asyncio
import sys
from typing import Any

_TRIALS = 1000  # as asyncio itself: the set may change while it is read
_NAME = "_scheduled_tasks" if sys.version_info >= (3, 12) else "_all_tasks"


def all_tasks() -> list[asyncio.Task[Any]] | None:
    """Returns the tasks of all event loops, also of closed ones; None if this Python has no list.

    Python 3.14 keeps one for each thread, in C.
    """
    tasks = None if sys.version_info >= (3, 14) else getattr(asyncio.tasks, _NAME, None)
    if tasks is None:
        return None
    for _ in range(_TRIALS):
        try:
            return list(tasks)
        except RuntimeError:
            continue
    return None
