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
from millrace_ipu.tensorflow.graph_mode import Deferred, in_graph_mode
from millrace_ipu.tensorflow.no_operation import warn_no_effect

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
        check_arguments(device_ordinal, feed_name=feed_name, replication_factor=replication_factor)
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

    dequeued = InfeedQueue.is_read  # whether a program that takes elements has been traced

    @property
    def number_of_tuple_elements(self) -> int:
        """Number of items in an element: 1 unless it is a tuple."""
        spec = getattr(self.dataset, "element_spec", None)
        element = self.block().batches if spec is None else spec
        return len(element) if isinstance(element, tuple) else 1

    def get_next(self) -> NoReturn:
        """Raises an error: loops and pipelines pass elements to their functions."""
        raise OptionError(
            "get_next() of an infeed queue is obsolete. Set infeed_queue=queue in loops.repeat() "
            "or in pipeline(), which give each element to the body."
        )


def check_arguments(device_ordinal: object, **of_early_releases: object) -> None:
    """Checks arguments of queues, and warns of those that only early releases took.

    Raises:
        OptionError: unless `device_ordinal` is None or a whole number from 0 on.
    """
    if device_ordinal is not None:
        whole_number("device_ordinal", device_ordinal, 0)
    for name, value in of_early_releases.items():
        if value is not None:
            warn_no_effect(f"{name} of a queue", "Leave it out: queues are told apart as objects.")
