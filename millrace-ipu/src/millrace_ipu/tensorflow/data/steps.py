"""Transformations of streams of elements, and of the number of elements in them."""

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from millrace_ipu.pytrees import ArrayTree
from millrace_ipu.tensorflow.data.elements import stacked

INFINITE = -1
UNKNOWN = -2


class Shuffled:
    """Draws elements at random from a buffer, which it refills from the stream.

    Args:
        elements: opens the stream.
        size: elements in the buffer.
        seed: None draws one from NumPy's global generator.
        anew: whether each pass has another order.
    """

    def __init__(
        self,
        elements: Callable[[], Iterator[ArrayTree]],
        size: int,
        seed: int | None,
        anew: bool,
    ):
        self._elements, self._size, self._anew = elements, size, anew
        self._seed, self._passes = seed, 0

    def __call__(self) -> Iterator[Any]:
        """Yields the elements of one pass."""
        if self._seed is None:  # keras.utils.set_random_seed seeds this generator
            self._seed = int(np.random.randint(2**31))
        random = np.random.default_rng((self._seed, self._passes if self._anew else 0))
        self._passes += 1
        elements = self._elements()
        buffer = list(itertools.islice(elements, self._size))
        for element in elements:
            index = int(random.random() * len(buffer))
            yield buffer[index]
            buffer[index] = element
        for index in random.permutation(len(buffer)):
            yield buffer[index]


class Cached:
    """Keeps the elements of the first complete pass."""

    def __init__(self, elements: Callable[[], Iterator[ArrayTree]]):
        self._elements = elements
        self._cached: list[ArrayTree] | None = None
        self._lock = threading.Lock()

    def __call__(self) -> Iterator[Any]:
        """Yields the elements of one pass."""
        if self._cached is not None:
            yield from self._cached
            return
        elements = []
        for element in self._elements():
            elements.append(element)
            yield element
        with self._lock:
            self._cached = elements


def batches(elements: Iterator[ArrayTree], size: int, drop_remainder: bool) -> Iterator[Any]:
    """Yields batches; the last one may be smaller."""
    while rows := list(itertools.islice(elements, size)):
        if len(rows) == size or not drop_remainder:
            yield stacked(rows)


def repeated(elements: Callable[[], Iterator[ArrayTree]], count: int | None) -> Iterator[Any]:
    """Yields the elements of `count` passes; None goes on forever, unless a pass is empty."""
    for _ in itertools.count() if count is None else range(count):
        is_empty = True
        for element in elements():
            is_empty = False
            yield element
        if is_empty:
            return


def numbers(elements: Iterable[ArrayTree], start: int) -> Iterator[Any]:
    """Yields pairs of a number and an element."""
    for number, element in enumerate(elements, start):
        yield np.int64(number), element


def least(cardinalities: Iterable[int]) -> int:
    """Returns the number of elements of zipped data sets."""
    numbers = list(cardinalities)
    finite = [n for n in numbers if n >= 0]
    return UNKNOWN if UNKNOWN in numbers else min(finite) if finite else INFINITE


def times(cardinality: int, count: int | None) -> int:
    """Returns the number of elements of several passes."""
    if cardinality == 0 or count == 0:
        return 0
    if count is None:
        return INFINITE
    return cardinality if cardinality < 0 else cardinality * count


def at_most(cardinality: int, count: int) -> int:
    """Returns the number of elements after `take(count)`; -1 takes all."""
    if count < 0:
        return cardinality
    return count if cardinality == INFINITE else min(cardinality, count) if cardinality >= 0 else -2


def without(cardinality: int, count: int) -> int:
    """Returns the number of elements after `skip(count)`; -1 skips all."""
    if count < 0:
        return 0
    return max(cardinality - count, 0) if cardinality >= 0 else cardinality


def in_batches(cardinality: int, size: int, drop_remainder: bool) -> int:
    """Returns the number of batches."""
    if cardinality < 0:
        return cardinality
    return cardinality // size if drop_remainder else -(-cardinality // size)


def joined(first: int, second: int) -> int:
    """Returns the number of elements of one data set followed by another."""
    if INFINITE in (first, second):
        return INFINITE
    return UNKNOWN if UNKNOWN in (first, second) else first + second
