"""What a Functional model is refused for as it is made, rather than when it first runs.

a call outside of all PipelineStage scopes, and another one inside   -> OptionError

The layers of a Sequential make a Functional model too, whose stages nobody reads.
"""

import functools
import threading
from collections.abc import Callable
from typing import Any

from millrace.strategy.controller import Controller


def checking(build: Callable[..., None], controller: Controller) -> Callable[..., None]:
    """Returns the `build` of a Functional model, which ends its construction."""

    @functools.wraps(build)
    def checked(*args: Any, **kwargs: Any) -> None:
        build(*args, **kwargs)
        if not _local.is_in_sequential:
            controller.stages.assignment()

    return checked


def sparing(build: Callable[..., None]) -> Callable[..., None]:
    """Returns the `build` of a Sequential."""

    @functools.wraps(build)
    def spared(*args: Any, **kwargs: Any) -> None:
        before, _local.is_in_sequential = _local.is_in_sequential, True
        try:
            build(*args, **kwargs)
        finally:
            _local.is_in_sequential = before

    return spared


class _Local(threading.local):
    is_in_sequential = False


_local = _Local()
