"""Warnings of what loops use and a checkpoint of them has not."""

import logging
from collections.abc import Iterable

from millrace.api.checkpoints.named_parts import NamedParts
from millrace.api.own_loops.scope import assigned_by_loops, forget_assigned
from millrace.base.checkpoints.random_state import shared_seeds
from millrace.programs.feeds.infeed_queue import queues_in_use
from millrace.programs.taps.outfeed_queue import queues_with_elements

logger = logging.getLogger("millrace")

_SHOWN = 5  # names in a message
_warned: set[int] = set()  # addresses of objects


def warn_of_unsaved(parts: NamedParts) -> None:
    """Warns once of each variable that loops assign, and of each queue, that is not saved."""
    saved = {id(variable) for own in parts.variables.values() for variable in own}
    saved |= {id(queue) for queue in (*parts.infeeds.values(), *parts.outfeeds.values())}
    saved |= {id(variable) for variable in shared_seeds().values()}
    new = [each for each in assigned_by_loops() if id(each) not in saved]
    if names := [each.path for each in _not_warned(new)]:
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        logger.warning(
            "Variables that loops assign are not saved: %s%s. If later steps depend on them, name "
            "their owners: save_checkpoint(..., metric=metric).",
            ", ".join(names[:_SHOWN]),
            more,
        )
    for queue in _not_warned(each for each in queues_in_use() if id(each) not in saved):
        logger.warning(
            "The position of %r is not saved. Name it: save_checkpoint(..., infeed=queue).", queue
        )
    for queue in _not_warned(each for each in queues_with_elements() if id(each) not in saved):
        logger.warning(
            "%r has elements that nobody has read, and is not saved. Call dequeue() before, or "
            "name it: save_checkpoint(..., outfeed=queue).",
            queue,
        )


def forget_earlier() -> None:
    """Takes variables and queues that loops have used so far for those of another training."""
    forget_assigned()
    _warned.update(map(id, (*queues_in_use(), *queues_with_elements())))


def _not_warned(objects: Iterable[object]) -> list:  # type: ignore[type-arg]
    new = [each for each in objects if id(each) not in _warned]
    _warned.update(map(id, new))
    return new
