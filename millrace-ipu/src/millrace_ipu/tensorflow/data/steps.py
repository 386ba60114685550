"""Transformations of streams of elements."""

import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from millrace_ipu.pytrees import ArrayTree
from millrace_ipu.tensorflow.data.elements import stacked

# Numbers of elements, with which Python computes: an infinite number minus 3 is infinite.
INFINITE, UNKNOWN = float("inf"), float("nan")


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
    """Yields the elements of `count` passes; None continues forever, unless a pass is empty."""
    for _ in itertools.count() if count is None else range(count):
        is_empty = True
        for element in elements():
            is_empty = False
            yield element
        if is_empty:
            return
