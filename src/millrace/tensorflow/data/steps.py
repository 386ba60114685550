"""The methods of a data set on streams of elements: iterators in, iterator out."""

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from millrace.tensorflow.data.elements import stacked

INFINITE = -1
UNKNOWN = -2


class Shuffled:
    """Draws from a buffer that is filled up again; every pass in another order, if asked to."""

    def __init__(self, elements: Callable[[], Iterator[Any]], size: int, seed: Any, anew: bool):
        self._elements, self._size, self._anew = elements, size, anew
        self._seed, self._passes = seed, 0

    def __call__(self) -> Iterator[Any]:
        """Begins a pass."""
        if self._seed is None:  # of the generator that keras.utils.set_random_seed sets
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
    """Keeps the elements of the first pass that comes to its end."""

    def __init__(self, elements: Callable[[], Iterator[Any]]):
        self._elements = elements
        self._kept: list[Any] | None = None
        self._lock = threading.Lock()

    def __call__(self) -> Iterator[Any]:
        """Begins a pass."""
        if self._kept is not None:
            yield from self._kept
            return
        found = []
        for element in self._elements():
            found.append(element)
            yield element
        with self._lock:
            self._kept = found


def batches(elements: Iterator[Any], size: int, drop_remainder: bool) -> Iterator[Any]:
    """Yields stacks of elements; the last one may have fewer."""
    while rows := list(itertools.islice(elements, size)):
        if len(rows) == size or not drop_remainder:
            yield stacked(rows)


def repeated(elements: Callable[[], Iterator[Any]], count: int | None) -> Iterator[Any]:
    """Yields several passes; None goes on for ever, unless a pass is empty."""
    for _ in itertools.count() if count is None else range(count):
        is_empty = True
        for element in elements():
            is_empty = False
            yield element
        if is_empty:
            return


def numbers(elements: Iterable[Any], start: int) -> Iterator[Any]:
    """Yields each element after its number."""
    for number, element in enumerate(elements, start):
        yield np.int64(number), element


def least(cardinalities: Iterable[int]) -> int:
    """Returns the elements of data sets side by side."""
    found = list(cardinalities)
    finite = [n for n in found if n >= 0]
    return UNKNOWN if UNKNOWN in found else min(finite) if finite else INFINITE


def times(cardinality: int, count: int | None) -> int:
    """Returns the elements of several passes."""
    if cardinality == 0 or count == 0:
        return 0
    if count is None:
        return INFINITE
    return cardinality if cardinality < 0 else cardinality * count


def at_most(cardinality: int, count: int) -> int:
    """Returns the elements of the beginning of a data set; -1 is all."""
    if count < 0:
        return cardinality
    return count if cardinality == INFINITE else min(cardinality, count) if cardinality >= 0 else -2


def without(cardinality: int, count: int) -> int:
    """Returns the elements of a data set without its beginning; -1 is all."""
    if count < 0:
        return 0
    return max(cardinality - count, 0) if cardinality >= 0 else cardinality


def in_batches(cardinality: int, size: int, drop_remainder: bool) -> int:
    """Returns how many batches there are."""
    if cardinality < 0:
        return cardinality
    return cardinality // size if drop_remainder else -(-cardinality // size)


def together(first: int, second: int) -> int:
    """Returns the elements of one data set after another."""
    if INFINITE in (first, second):
        return INFINITE
    return UNKNOWN if UNKNOWN in (first, second) else first + second
