"""Queues into programs.

IPUInfeedQueue(dataset, prefetch_depth=n)   -> millrace.InfeedQueue(dataset, n)
queue.initializer                           -> begins the data set anew
queue.deleter                               -> close()
queue.dequeued                              -> is_read
queue.get_next()                            -> the body of a loop is given the element
device_ordinal                              of no effect but to be checked
"""

from typing import Any

from millrace.errors import DataError, OptionError
from millrace.feeds.infeed_queue import InfeedQueue
from millrace.ipu.later import later
from millrace.options import whole_number
from millrace.tensorflow.graph_mode import in_graph_mode

DEPTH = 2  # blocks; results do not depend on it


class IPUInfeedQueue(InfeedQueue):
    """Feeds the elements of a data set to loops and pipelines, in order.

    Args:
        dataset: with fixed shapes.
        device_ordinal: a logical device.
        prefetch_depth: blocks that are prepared ahead, from 1 to 255.
    """

    def __init__(
        self, dataset: Any, device_ordinal: int | None = None, prefetch_depth: int | None = None
    ):
        checked_ordinal(device_ordinal)
        super().__init__(dataset, DEPTH if prefetch_depth is None else prefetch_depth)
        self._is_initialized = False

    @property
    def initializer(self) -> Any:
        """Begins the data set anew; in graph mode what a session runs for that, once."""
        if in_graph_mode() and self._is_initialized:
            raise DataError(
                "The initializer of an infeed queue was asked for twice. Keep what it returned "
                "the first time, and run that."
            )
        self._is_initialized = True
        return later(self.close)

    @property
    def deleter(self) -> Any:
        """Ends the queue's thread."""
        return later(self.close)

    @property
    def dequeued(self) -> bool:
        """Whether a program that takes elements has been traced."""
        return self.is_read

    @property
    def number_of_tuple_elements(self) -> int:
        """How many items an element has: 1 if it is no tuple."""
        spec = getattr(self.dataset, "element_spec", None)
        element = self.block().batches if spec is None else spec
        return len(element) if isinstance(element, tuple) else 1

    def get_next(self) -> Any:
        """Was replaced.

        Raises:
            OptionError: always.
        """
        raise OptionError(
            "get_next() of an infeed queue is obsolete. Set infeed_queue=queue in loops.repeat() "
            "or in pipeline(), which give each element to the body."
        )


def checked_ordinal(ordinal: Any) -> None:
    """Checks a `device_ordinal`.

    Raises:
        OptionError: if it is none.
    """
    if ordinal is not None:
        whole_number("device_ordinal", ordinal, 0)
