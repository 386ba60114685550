"""Queues out of programs.

IPUOutfeedQueue(IPUOutfeedMode.ALL)     -> millrace.OutfeedQueue("all"), which drops nothing
IPUOutfeedQueue(IPUOutfeedMode.LAST)    -> millrace.OutfeedQueue("last")
queue.enqueue, dequeue, enqueued, iteration   -> the same; arrays also have .numpy()
queue.deleter                           -> forgets what has arrived
device_ordinal, buffer_depth            of no effect but to be checked
"""

import enum
import sys
from collections.abc import Iterator
from typing import Any

from millrace.errors import OptionError, PlanError, QueueError, TapError
from millrace.ipu.ipu_infeed_queue import checked_ordinal
from millrace.ipu.later import later
from millrace.options import whole_number
from millrace.taps.outfeed import OutfeedQueue
from millrace.taps.structure import ordered, plain
from millrace.tensorflow.graph_mode import in_graph_mode
from millrace.tensorflow.values import host_array


class IPUOutfeedMode(enum.Enum):
    """Which elements a queue keeps: all, or the newest."""

    ALL = "all"
    LAST = "get_last"


class IPUOutfeedQueue(OutfeedQueue):
    """Carries values out of loops and pipelines.

    Args:
        outfeed_mode: an `IPUOutfeedMode`; None is ALL.
        device_ordinal: a logical device.
        buffer_depth: at least 1.
    """

    def __init__(
        self, outfeed_mode: Any = None, device_ordinal: int | None = None, buffer_depth: int = 1
    ):
        mode = IPUOutfeedMode.ALL if outfeed_mode is None else outfeed_mode
        if not isinstance(mode, IPUOutfeedMode):
            raise OptionError(
                "outfeed_mode is IPUOutfeedMode.ALL or IPUOutfeedMode.LAST. Received: "
                f"{outfeed_mode!r}."
            )
        checked_ordinal(device_ordinal)
        whole_number("buffer_depth", buffer_depth, 1)
        super().__init__(mode.name.lower(), max_bytes=sys.maxsize)

    def dequeue(self, wait_for_completion: bool = False) -> Any:
        """Returns what has arrived since the last call; in graph mode what a session runs."""
        if in_graph_mode() and not self.enqueued:
            raise TapError(
                "dequeue() was called before a program was built that enqueues. Build it first: "
                "ipu_compiler.compile(...) of what calls enqueue()."
            )
        return later(self._dequeued, wait_for_completion)

    def __iter__(self) -> Iterator[Any]:
        """Yields element by element what has arrived, until nothing more has."""
        if in_graph_mode():
            raise QueueError(
                "An outfeed queue is iterated where values are there at once, which they are not "
                "in graph mode. Run dequeue() in a session."
            )
        return map(_on_host, super().__iter__())

    @property
    def deleter(self) -> Any:
        """Forgets what has arrived."""
        return later(self.clear)

    def _dequeued(self, wait_for_completion: bool) -> Any:
        return _on_host(super().dequeue(wait_for_completion))


class ScopedIPUOutfeedQueue(IPUOutfeedQueue):
    """A queue that forgets what has arrived when nothing refers to it any more."""

    def __init__(self, outfeed_mode: Any = None, device_ordinal: int | None = None):
        if in_graph_mode():
            raise PlanError(
                "ScopedIPUOutfeedQueue is for eager programs. Set IPUOutfeedQueue, and run its "
                "deleter."
            )
        super().__init__(outfeed_mode, device_ordinal)


def _on_host(value: Any) -> Any:
    return plain(host_array(ordered(value)))
