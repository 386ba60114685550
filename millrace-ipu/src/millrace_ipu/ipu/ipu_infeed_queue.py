"""Queues into programs.

IPUInfeedQueue(dataset, prefetch_depth=n)   -> millrace.InfeedQueue(dataset, n)
queue.initializer                           -> begins the data set anew
queue.deleter                               -> close()
queue.dequeued                              -> is_read
queue.get_next()                            -> loops and pipelines pass elements to their functions
device_ordinal                              checked, and without further effect
feed_name, replication_factor               of early releases, without effect
"""

from typing import NoReturn

from millrace import InfeedQueue
from millrace.errors import DataError, OptionError
from millrace.extend import whole_number
from millrace_ipu.ipu.deferral import call_or_defer
from millrace_ipu.ipu.no_effect import warn_no_effect
from millrace_ipu.tensorflow.graph_mode import Deferred, in_graph_mode

DEPTH = 2  # blocks; results do not depend on it


class IPUInfeedQueue(InfeedQueue):
    """Feeds the elements of a data set to loops and pipelines, in order.

    Args:
        dataset: a data set of fixed shapes.
        device_ordinal: number of a logical device.
        prefetch_depth: blocks to prepare ahead, from 1 to 255.
        feed_name: of early releases, without effect.
        replication_factor: of early releases, without effect: the configuration has the replicas.
    """

    def __init__(
        self,
        dataset: object,
        device_ordinal: int | None = None,
        prefetch_depth: int | None = None,
        *,
        feed_name: str | None = None,
        replication_factor: int | None = None,
    ):
        checked_ordinal(device_ordinal)
        warn_of_early_arguments(feed_name=feed_name, replication_factor=replication_factor)
        super().__init__(dataset, DEPTH if prefetch_depth is None else prefetch_depth)
        self._is_initialized = False

    @property
    def initializer(self) -> Deferred | None:
        """Restarts the data set; in graph mode, returns an operation that does so in a session.

        Raises:
            DataError: when it is read a second time in graph mode.
        """
        if in_graph_mode() and self._is_initialized:
            raise DataError(
                "The initializer of an infeed queue was asked for twice. Keep the operation from "
                "the first time, and run that."
            )
        self._is_initialized = True
        return call_or_defer(self.close)

    @property
    def deleter(self) -> Deferred | None:
        """Ends the queue's thread; in graph mode, returns an operation that does so."""
        return call_or_defer(self.close)

    @property
    def dequeued(self) -> bool:
        """Whether a program that takes elements has been traced."""
        return self.is_read

    @property
    def number_of_tuple_elements(self) -> int:
        """Number of items in an element: 1 unless it is a tuple."""
        spec = getattr(self.dataset, "element_spec", None)
        element = self.block().batches if spec is None else spec
        return len(element) if isinstance(element, tuple) else 1

    def get_next(self) -> NoReturn:
        """Is obsolete: loops and pipelines pass elements to their functions.

        Raises:
            OptionError: always.
        """
        raise OptionError(
            "get_next() of an infeed queue is obsolete. Set infeed_queue=queue in loops.repeat() "
            "or in pipeline(), which give each element to the body."
        )


def warn_of_early_arguments(**arguments: object) -> None:
    """Warns of arguments that queues of early releases took, where they are set."""
    for name, value in arguments.items():
        if value is not None:
            warn_no_effect(f"{name} of a queue", "Leave it out: queues are told apart as objects.")


def checked_ordinal(ordinal: object) -> None:
    """Checks a `device_ordinal`.

    Raises:
        OptionError: unless it is None or a whole number from 0 on.
    """
    if ordinal is not None:
        whole_number("device_ordinal", ordinal, 0)
