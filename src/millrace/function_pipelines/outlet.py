"""The sums of what the micro-batches of an update leave, for a queue of one element per update.

micro-batches   3 1 2 2 | 5 0 1 1        two updates of four
queue                 8         7
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from millrace.taps.outfeed import OutfeedQueue

DTypeChoice = Callable[[Any], Any]  # of a value: the dtype to add it up in


class WindowSums(OutfeedQueue):
    """Takes an element of every micro-batch, and gives their sums to another queue.

    They are added in the order of the micro-batches, in the chosen dtype, on the host.
    """

    def __init__(self, queue: OutfeedQueue, window: int, dtype_of: DTypeChoice):
        """Makes one for one queue.

        Args:
            queue: gets an element for each update.
            window: elements of an update.
            dtype_of: of each value.
        """
        super().__init__("all")
        self._queue, self._window, self._dtype_of = queue, window, dtype_of
        self._sums: list[Any] | None = None
        self._count = 0

    def enqueue(self, value: Any) -> None:
        """Carries `value` out of the program, and takes note that the other queue is used."""
        super().enqueue(value)
        self._queue.mark_enqueued()

    def expect(self) -> None:
        """Takes note that a part is on its way."""
        self._queue.expect()

    def fail(self, error: BaseException) -> None:
        """Takes note that a part will not come."""
        self._sums, self._count = None, 0
        self._queue.fail(error)

    def receive(self, value: Any, elements: int) -> None:
        """Takes a part in, and passes on the sums of the updates that are complete."""
        leaves, tree = jax.tree.flatten(value)
        dtypes = [np.dtype(self._dtype_of(leaf)) for leaf in leaves]
        done: list[list[Any]] = []
        for k in range(elements):
            one = [np.asarray(leaf[k], dtype) for leaf, dtype in zip(leaves, dtypes, strict=True)]
            if self._sums is None:
                self._sums = one
            else:
                with np.errstate(over="ignore"):  # a narrow dtype overflows to infinity
                    self._sums = [
                        np.asarray(a + b, a.dtype) for a, b in zip(self._sums, one, strict=True)
                    ]
            self._count += 1
            if self._count == self._window:
                done.append(self._sums)
                self._sums, self._count = None, 0
        stacked = [np.stack(column) for column in zip(*done, strict=True)]
        self._queue.receive(jax.tree.unflatten(tree, stacked) if done else (), len(done))
