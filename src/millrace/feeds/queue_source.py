"""The elements of an infeed queue's data set, and the state of what they are drawn from.

list, tuple, array                        the index of the next element
an iterator with get_state, set_state     its own: of Grain, for example
a loader with state_dict                  its own, of torch
a data set with get_state, set_state      its own
a generator, tf.data, and others          none: drawn again from the beginning
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import keras
import numpy as np

from millrace.feeds.source_position import StateFunctions


class _Indexed:
    """The elements of a list or an array, by their index."""

    def __init__(self, elements: Sequence[Any]):
        self._elements, self._next = elements, 0

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._next >= len(self._elements):
            raise StopIteration
        self._next += 1
        return self._elements[self._next - 1]

    def get_state(self) -> int:
        return self._next

    def set_state(self, state: int) -> None:
        self._next = state


def drawn_from(dataset: Any) -> tuple[Iterator[Any], StateFunctions | None]:
    """Returns the elements of a data set, and functions that get and set the state of them.

    Args:
        dataset: an iterable.
    """
    elements = _iterator(dataset)
    if hasattr(dataset, "state_dict") and hasattr(dataset, "load_state_dict"):
        return elements, StateFunctions(dataset.state_dict, dataset.load_state_dict)
    for owner in (elements, dataset):
        if hasattr(owner, "get_state") and hasattr(owner, "set_state"):
            return elements, StateFunctions(owner.get_state, owner.set_state)
    return elements, None


def length_of(dataset: Any) -> int | None:
    """Returns the number of elements of a data set; None where it says none."""
    if isinstance(dataset, keras.utils.PyDataset):
        return dataset.num_batches
    count: Callable[[], int] | None = getattr(dataset, "__len__", None)
    try:
        return None if count is None else int(count())
    except TypeError:  # of data sets without end
        return None


def is_used_up(dataset: Any) -> bool:
    """Whether a data set can be drawn from once only, as a generator can."""
    return hasattr(dataset, "__next__") and not hasattr(dataset, "set_state")


def _iterator(dataset: Any) -> Iterator[Any]:
    if isinstance(dataset, list | tuple | np.ndarray | jax.Array):
        return _Indexed(dataset)
    if hasattr(dataset, "as_numpy_iterator"):
        return iter(dataset.as_numpy_iterator())
    if isinstance(dataset, keras.utils.PyDataset):
        return _batches(dataset)
    return iter(dataset)


def _batches(dataset: keras.utils.PyDataset) -> Iterator[Any]:
    number = dataset.num_batches
    for index in itertools.count() if number is None else range(number):
        yield dataset[index]
    dataset.on_epoch_end()
