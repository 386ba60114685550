"""Iterators over data sets for compiled functions: `next()` gives an element on the device.

    iterator = iter(dataset)            in the scope of an IPUStrategy
    x, y = next(iterator)               in a function compiled by tf.function
        in a loop over tf.range(n)    each iteration gets the next one   conversion/range_loop.py
        outside of loops              it is an argument of the function  function.py

Elements go through a native `InfeedQueue`, so the position in the data belongs to the iterator.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax
import numpy as np

from millrace import InfeedQueue
from millrace.errors import QueueError, UnsupportedError
from millrace.extend import (
    ScopedValue,
    current_scope,
    is_tracing,
    launch_in_force,
    replicas,
    replication_index,
)
from millrace_ipu.pytrees import ArrayTree


def device_iterators(enabled: bool = True) -> AbstractContextManager[Any]:
    """Chooses whether `iter(dataset)`, in this thread, is for compiled functions."""
    return _enabled.bound_to(enabled)


def gives_device_iterators() -> bool:
    """Whether `iter(dataset)` is for compiled functions."""
    return _enabled.get()


class DeviceIterator:
    """Gives compiled functions the elements of a data set, in order."""

    def __init__(self, dataset: object, prefetch_depth: int = 2):
        self.queue = InfeedQueue(dataset, prefetch_depth)

    @property
    def element_spec(self) -> Any:
        """A `TensorSpec` for each array of an element."""
        return self.queue.dataset.element_spec

    def __iter__(self) -> "DeviceIterator":
        return self

    def __next__(self) -> Any:
        source = _source.get()
        if source is None:
            raise QueueError(
                "An iterator that was made in the scope of an IPUStrategy gives its elements to "
                "compiled functions only. Call next() in a tf.function that strategy.run() runs; "
                "or set IPUStrategy(enable_dataset_iterators=False) to read the data set in "
                "Python."
            )
        return source(self)

    def get_next(self) -> Any:
        """Returns the next element."""
        return next(self)

    def get_next_as_optional(self) -> Any:
        """Raises an error: a compiled loop cannot ask whether there is another element."""
        raise UnsupportedError(
            "get_next_as_optional() asks whether there is another element, which a compiled loop "
            "cannot do. Repeat the data set, and call next()."
        )

    def take(self) -> Any:
        """Takes the next element on the host."""
        segment = self.queue.take(1)
        return jax.tree.map(lambda leaf: leaf[segment.start], segment.block.batches)

    def zeros(self) -> Any:
        """Returns an element of zeros, with the shapes and dtypes of the data; takes nothing."""
        return jax.tree.map(
            lambda leaf: np.zeros(leaf.shape[1:], leaf.dtype), self.queue.block().batches
        )

    def __repr__(self) -> str:
        return f"<iterator for compiled functions, {self.queue.delivered} elements taken>"


class ElementNeeded(Exception):  # noqa: N818 - no error: it asks for an element
    """Ends a trace in which the function draws from an iterator without an element for it."""

    def __init__(self, iterator: DeviceIterator):
        super().__init__()
        self.iterator = iterator


ElementSource = Callable[[DeviceIterator], Any]

_enabled = ScopedValue(False)
_source = ScopedValue[ElementSource | None](None)


def drawing_from(source: ElementSource) -> AbstractContextManager[Any]:
    """Lets `next()`, in this thread, take elements from `source`."""
    return _source.bound_to(source)


class FunctionElements:
    """Elements for `next()` outside of loops: arguments of the compiled function."""

    def __init__(self, iterators: Sequence[DeviceIterator], elements: Sequence[ArrayTree]):
        self._unused = list(zip(iterators, elements, strict=True))
        self._scope = current_scope()

    def __call__(self, iterator: DeviceIterator) -> Any:
        """Returns the element for one call of `next(iterator)`."""
        scope = current_scope()
        while scope is not self._scope and getattr(scope, "is_of_tape", False):
            scope = scope.around
        if scope is not self._scope:
            raise QueueError(
                "next(iterator) was called in the body of a loop that is not over tf.range(). Set "
                "infeed_queue=IPUInfeedQueue(dataset) in that loop, whose body then gets the "
                "element; or write `for _ in tf.range(n):`."
            )
        for index, (source, element) in enumerate(self._unused):
            if source is iterator:
                del self._unused[index]
                return _of_replica(element)
        if not is_tracing() and scope is None:  # on the host, which drives a pipeline
            return iterator.take()
        raise ElementNeeded(iterator)


def _of_replica(element: Any) -> Any:
    """Returns the element of the replica that is traced, out of those of all."""
    launch = launch_in_force.get()
    devices = 1 if launch is None else len(launch.devices)
    if devices == 1:
        return element
    if devices != replicas():
        raise UnsupportedError(
            f"next(iterator) outside of a loop gives each of {devices} devices an element, "
            f"and the function has {replicas()} replicas, since it uses shards. Call next() in a "
            "loop, for _ in tf.range(1), or configure one device for each replica."
        )
    return jax.tree.map(lambda leaf: leaf[replication_index()], element)


class IterationElement:
    """The element for `next()` in one iteration of a loop over `tf.range`."""

    def __init__(self, iterator: DeviceIterator | None, element: ArrayTree, location: str):
        self._iterator, self._element, self._location = iterator, element, location
        self._is_taken = False

    def __call__(self, iterator: DeviceIterator) -> Any:
        """Returns the element for one call of `next(iterator)`."""
        if self._iterator is None:
            raise ElementNeeded(iterator)
        if iterator is not self._iterator:
            raise QueueError(
                f"The loop in {self._location} draws from two iterators. Make one iterator of both "
                "data sets: iter(tf.data.Dataset.zip((first, second)))."
            )
        if self._is_taken:
            raise QueueError(
                f"The loop in {self._location} calls next() twice in one iteration. Put both "
                "batches into one element, iter(dataset.batch(2, drop_remainder=True)), and index "
                "it by [0] and [1]."
            )
        self._is_taken = True
        return self._element
