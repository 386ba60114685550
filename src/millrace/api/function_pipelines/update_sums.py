"""Sums over the micro-batches of an update, on their way to an outfeed."""

from collections.abc import Callable
from typing import TypeAlias

import jax
import keras
import numpy as np
from jax.typing import DTypeLike

from millrace.base.pytrees import ArrayTree
from millrace.errors import OptionError
from millrace.programs.taps.outfeed_queue import OutfeedQueue

# The dtype to add values up in: one for all, or a function of the value.
DTypeChoice: TypeAlias = DTypeLike | Callable[[np.ndarray], DTypeLike]
DTypeOf: TypeAlias = Callable[[np.ndarray], DTypeLike]


class UpdateSums(OutfeedQueue):
    """Adds up the elements of an update's micro-batches, and gives the sums to another queue.

        micro-batches   3 1 2 2 | 5 0 1 1        two updates of four
        queue                 8         7

    They are added in the order of the micro-batches, in the chosen dtype, on the host.
    """

    def __init__(self, queue: OutfeedQueue, micro_batches: int, dtype_of: DTypeOf):
        """Begins with an empty sum.

        Args:
            queue: gets an element for each update.
            micro_batches: elements in an update.
            dtype_of: dtype of the sum of a value.
        """
        super().__init__("all")
        self._queue, self._micro_batches, self._dtype_of = queue, micro_batches, dtype_of
        self._sums: list[np.ndarray] | None = None
        self._count = 0

    def enqueue(self, value: ArrayTree) -> None:
        """Carries `value` out of the program, and marks the other queue as used."""
        super().enqueue(value)
        self._queue.mark_enqueued()

    def expect(self) -> None:
        """Announces elements that are on their way."""
        self._queue.expect()

    def fail(self, error: BaseException) -> None:
        """Announces that elements will not arrive, because of an error."""
        self._sums, self._count = None, 0
        self._queue.fail(error)

    def receive(self, value: ArrayTree, elements: int) -> None:
        """Adds elements up, and passes on the sums of complete updates."""
        leaves, tree = jax.tree.flatten(value)
        dtypes = [np.dtype(self._dtype_of(leaf)) for leaf in leaves]
        done: list[list[np.ndarray]] = []
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
            if self._count == self._micro_batches:
                done.append(self._sums)
                self._sums, self._count = None, 0
        stacked = [np.stack(column) for column in zip(*done, strict=True)]
        self._queue.receive(jax.tree.unflatten(tree, stacked) if done else (), len(done))


def dtype_function(choice: DTypeChoice | None) -> DTypeOf:
    """Returns a function from a value to the dtype of its sum.

    Raises:
        OptionError: if `choice` is neither a dtype nor a function.
    """
    if choice is None:
        return lambda value: value.dtype
    if isinstance(choice, str) or hasattr(choice, "name") or isinstance(choice, type):
        dtype = np.dtype(keras.backend.standardize_dtype(choice))
        return lambda value: dtype
    if callable(choice):
        return lambda value: keras.backend.standardize_dtype(choice(value))
    raise OptionError(
        f"accumulate_outfeed_dtype is a dtype or a function of a value. Received: {choice!r}."
    )
