"""Iterators over data sets for compiled functions: `next()` there is an element on the device.

    iterator = iter(dataset)                in the scope of an IPUStrategy
    x, y = next(iterator)                   in a function of tf.function
        in a loop over tf.range(n)    each turn gets the next element      conversion/range_loop.py
        outside of loops              the function gets it as an argument  function.py

Elements go through a native `InfeedQueue`, so the position in the data belongs to the iterator.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax
import numpy as np

from millrace._compat.jax_tracing import is_tracing
from millrace._compat.keras_scope import current_scope
from millrace.errors import QueueError, UnsupportedError
from millrace.feeds.infeed_queue import InfeedQueue
from millrace.threads.scoped_value import ScopedValue


def device_iterators(enabled: bool = True) -> AbstractContextManager[Any]:
    """Lets `iter(dataset)` in this thread be for compiled functions, or not."""
    return _enabled.bound_to(enabled)


def gives_device_iterators() -> bool:
    """Whether `iter(dataset)` is for compiled functions."""
    return _enabled.get()


class DeviceIterator:
    """Gives compiled functions the elements of a data set, in order."""

    def __init__(self, dataset: Any, prefetch_depth: int = 2):
        self.queue = InfeedQueue(dataset, prefetch_depth)

    @property
    def element_spec(self) -> Any:
        """What elements look like."""
        return self.queue.dataset.element_spec

    def __iter__(self) -> "DeviceIterator":
        return self

    def __next__(self) -> Any:
        draws = _draws.get()
        if draws is None:
            raise QueueError(
                "An iterator that was made in the scope of an IPUStrategy gives its elements to "
                "compiled functions only. Call next() in a function of tf.function that "
                "strategy.run() runs; or set IPUStrategy(enable_dataset_iterators=False) to read "
                "the data set in Python."
            )
        return draws(self)

    def get_next(self) -> Any:
        """Returns the next element."""
        return next(self)

    def get_next_as_optional(self) -> Any:
        """Is refused: a compiled loop must know that there is an element."""
        raise UnsupportedError(
            "get_next_as_optional() asks whether there is one more element, which a compiled loop "
            "cannot. Repeat the data set, and call next()."
        )

    def take(self) -> Any:
        """Takes the next element on the host."""
        segment = self.queue.take(1)
        return jax.tree.map(lambda leaf: leaf[segment.start], segment.block.batches)

    def zeros(self) -> Any:
        """Returns an element's shapes and dtypes, as zeros; takes nothing."""
        return jax.tree.map(
            lambda leaf: np.zeros(leaf.shape[1:], leaf.dtype), self.queue.block().batches
        )

    def __repr__(self) -> str:
        return f"<iterator for compiled functions, {self.queue.delivered} elements taken>"


class Needed(Exception):  # noqa: N818 - no error: it asks for an element
    """Ends a trace: the function takes an element of an iterator that it was not given."""

    def __init__(self, iterator: DeviceIterator):
        super().__init__()
        self.iterator = iterator


Draws = Callable[[DeviceIterator], Any]

_enabled = ScopedValue(False)
_draws = ScopedValue[Draws | None](None)


def drawing(draws: Draws) -> AbstractContextManager[Any]:
    """Lets `next()` in this thread call a function."""
    return _draws.bound_to(draws)


class FunctionDraws:
    """What `next()` is outside of loops: elements that the compiled function is called with."""

    def __init__(self, iterators: Sequence[DeviceIterator], elements: Sequence[Any]):
        self._left = list(zip(iterators, elements, strict=True))
        self._scope = current_scope()

    def __call__(self, iterator: DeviceIterator) -> Any:
        """Returns the element that `next(iterator)` is."""
        scope = current_scope()
        while scope is not self._scope and getattr(scope, "is_of_tape", False):
            scope = scope.around
        if scope is not self._scope:
            raise QueueError(
                "next(iterator) was called in the body of a loop that is not over tf.range(). Set "
                "infeed_queue=IPUInfeedQueue(dataset) in that loop, whose body then gets the "
                "element; or write `for _ in tf.range(n):`."
            )
        for index, (known, element) in enumerate(self._left):
            if known is iterator:
                del self._left[index]
                return element
        if not is_tracing() and scope is None:  # on the host, which drives a pipeline
            return iterator.take()
        raise Needed(iterator)


class TurnDraws:
    """What `next()` is in a turn of a loop over `tf.range`: the turn's element."""

    def __init__(self, iterator: DeviceIterator | None, element: Any, place: str):
        self._iterator, self._element, self._place = iterator, element, place
        self._is_taken = False

    def __call__(self, iterator: DeviceIterator) -> Any:
        """Returns the element that `next(iterator)` is."""
        if self._iterator is None:
            raise Needed(iterator)
        if iterator is not self._iterator:
            raise QueueError(
                f"The loop in {self._place} takes elements of two iterators. Make one of both data "
                "sets: iter(tf.data.Dataset.zip((first, second)))."
            )
        if self._is_taken:
            raise QueueError(
                f"The loop in {self._place} calls next() twice in a turn. Let an element hold "
                "both: iter(dataset.batch(2, drop_remainder=True)), and take it apart by [0], [1]."
            )
        self._is_taken = True
        return self._element
