"""Queues out of programs.

IPUOutfeedQueue(IPUOutfeedMode.ALL)     -> millrace.OutfeedQueue("all"), which drops nothing
IPUOutfeedQueue(IPUOutfeedMode.LAST)    -> millrace.OutfeedQueue("last")
queue.enqueue, dequeue, enqueued, iteration   -> the same; arrays also have .numpy()
queue.deleter                           -> drops the elements that have arrived
device_ordinal, buffer_depth            checked, and without further effect
feed_name, replication_factor           of early releases, without effect
"""

import enum
import sys
from collections.abc import Iterator
from typing import Any

from millrace import OutfeedQueue
from millrace.errors import OptionError, PlanError, QueueError, TapError
from millrace.extend import ordered, plain, whole_number
from millrace_ipu.ipu.deferral import call_or_defer
from millrace_ipu.ipu.ipu_infeed_queue import check_arguments
from millrace_ipu.pytrees import ArrayTree
from millrace_ipu.tensorflow.graph_mode import Deferred, in_graph_mode
from millrace_ipu.tensorflow.values import host_array


class IPUOutfeedMode(enum.Enum):
    """The elements that a queue keeps: all, or the newest."""

    ALL = "all"
    LAST = "get_last"


class IPUOutfeedQueue(OutfeedQueue):
    """Carries values out of loops and pipelines.

    Args:
        outfeed_mode: which elements are kept; None is ALL.
        device_ordinal: number of a logical device.
        buffer_depth: at least 1.
        feed_name: of early releases, without effect.
        replication_factor: of early releases, without effect.
    """

    def __init__(
        self,
        outfeed_mode: IPUOutfeedMode | None = None,
        device_ordinal: int | None = None,
        buffer_depth: int = 1,
        *,
        feed_name: str | None = None,
        replication_factor: int | None = None,
    ):
        check_arguments(device_ordinal, feed_name=feed_name, replication_factor=replication_factor)
        mode = IPUOutfeedMode.ALL if outfeed_mode is None else outfeed_mode
        if not isinstance(mode, IPUOutfeedMode):
            raise OptionError(
                "outfeed_mode is IPUOutfeedMode.ALL or IPUOutfeedMode.LAST. Received: "
                f"{outfeed_mode!r}."
            )
        whole_number("buffer_depth", buffer_depth, 1)
        super().__init__("all" if mode is IPUOutfeedMode.ALL else "last", max_bytes=sys.maxsize)

    def dequeue(self, wait_for_completion: bool = False) -> Any:
        """Returns all elements since the last call; in graph mode, a deferred value of them.

        Args:
            wait_for_completion: waits for the running program in any thread.

        Raises:
            TapError: in graph mode, before a program that enqueues is built.
        """
        if in_graph_mode() and not self.enqueued:
            raise TapError(
                "dequeue() was called before a program was built that enqueues. Build it first: "
                "ipu_compiler.compile(...) of a function that calls enqueue()."
            )
        return call_or_defer(self._dequeued, wait_for_completion)

    def __iter__(self) -> Iterator[Any]:
        """Yields the elements that have arrived, one by one.

        Raises:
            QueueError: in graph mode, which has no values before a session runs.
        """
        if in_graph_mode():
            raise QueueError(
                "An outfeed queue cannot be iterated in graph mode, where values exist in a "
                "session only. Run dequeue() in a session."
            )
        return map(_on_host, super().__iter__())

    @property
    def deleter(self) -> Deferred | None:
        """Drops the elements that have arrived; in graph mode, returns an operation for it."""
        return call_or_defer(self.clear)

    def _dequeued(self, wait_for_completion: bool) -> Any:
        return _on_host(super().dequeue(wait_for_completion))


class ScopedIPUOutfeedQueue(IPUOutfeedQueue):
    """A queue that drops its elements once nothing refers to it."""

    def __init__(
        self, outfeed_mode: IPUOutfeedMode | None = None, device_ordinal: int | None = None
    ):
        if in_graph_mode():
            raise PlanError(
                "ScopedIPUOutfeedQueue is for eager programs. Use IPUOutfeedQueue in graph mode, "
                "and run its deleter."
            )
        super().__init__(outfeed_mode, device_ordinal)


def _on_host(value: ArrayTree) -> Any:
    return plain(host_array(ordered(value)))
