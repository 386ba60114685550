"""The elements of an infeed queue's data set, and the state of what they are drawn from.

list, tuple, array                        the index of the next element
an iterator with get_state, set_state     its own: of Grain, for example
a loader with state_dict                  its own, of torch
a data set with get_state, set_state      its own
a generator, tf.data, and others          none: drawn again from the beginning

Elements are NumPy arrays of one structure, of types that devices have.
"""

import itertools
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import keras
import numpy as np
from numpy.typing import ArrayLike

from millrace.base.checkpoints.random_state import random_state
from millrace.base.pytrees import ArrayTree
from millrace.errors import DataError
from millrace.programs.feeds.block import batch_spec
from millrace.programs.feeds.source_position import SourceState, StateFunctions, TrackedBatches
from millrace.programs.plan import BatchSpec


class QueueSource:
    """One pass through a data set, and what it takes to begin it again."""

    def __init__(self, dataset: Any, begin: SourceState | None, kind: str, changes: Any):
        """Describes the pass that is about to begin.

        Args:
            dataset: is iterated by the thread.
            begin: state in which the pass begins here, if the source can have it; None at its
                beginning.
            kind: of the source that had this state.
            changes: of the attributes of the data set; None if nobody watches them.
        """
        self._dataset, self._begin, self._kind = dataset, begin, kind
        self.kind = ""  # of the source, if it has a state; known once the thread has begun
        self.begun = 0  # elements before those that are drawn here
        self.dataset, self.random = changes, random_state()
        self.first: dict[str, Any] | None = None  # state of generators after the first element
        self.tracked: TrackedBatches | None = None  # once the thread has begun

    def elements(self) -> Iterator[Any]:
        """Yields the elements, from the state on with which the pass begins here."""
        dataset = self._dataset
        if not hasattr(dataset, "__iter__") and not hasattr(dataset, "__getitem__"):
            dataset = dataset()
            check_dataset(dataset)
        elements, functions = drawn_from(dataset)
        if functions is not None:
            self.kind = type(elements).__name__
        self.tracked = TrackedBatches(
            elements, functions, self._begin if self.kind == self._kind else None
        )
        self.begun = self.tracked.drawn
        for element in self.tracked:
            if self.first is None:
                self.first = random_state()
            yield element


class _Indexed(Iterator[Any]):
    """The elements of a list or an array, by their index."""

    def __init__(self, elements: Any):
        self._elements, self._next = elements, 0

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
    elements: Any = _iterator(dataset)
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


logger = logging.getLogger("millrace")


def check_dataset(dataset: object) -> None:
    """Refuses what cannot be iterated, and data sets whose elements have no fixed shapes.

    Raises:
        DataError: saying what to set.
    """
    is_iterable = hasattr(dataset, "__iter__") or hasattr(dataset, "__getitem__")
    if not is_iterable and not callable(dataset):
        raise DataError(
            "An infeed queue takes an iterable, or a function that returns one. "
            f"Received: {dataset!r} of type {type(dataset).__name__}."
        )
    for leaf in jax.tree.leaves(getattr(dataset, "element_spec", None)):  # of tf.data
        shape = getattr(leaf, "shape", None)
        dims = getattr(shape, "dims", shape)
        if shape is None or dims is None or any(size is None for size in shape):
            raise DataError(
                f"Elements of an infeed queue have one fixed shape, and the data set declares "
                f"{leaf}. Set drop_remainder=True in dataset.batch(), and pad rows of different "
                "lengths."
            )


def elements_of(source: Iterable[Any]) -> Iterator[ArrayTree]:
    """Yields elements as NumPy arrays, and checks that their specs are equal.

    Raises:
        DataError: naming the element that is not like the first one.
    """
    convert = _Converter()
    spec: BatchSpec | None = None
    for index, element in enumerate(source):
        element = jax.tree.map(convert, element)
        current = batch_spec(element)
        if spec is not None and current != spec:
            raise DataError(
                f"Element {index} of an infeed queue's data set is {spec_text(current)}, and the "
                f"first one is {spec_text(spec)}. A compiled loop takes elements of one structure "
                "and shape: set drop_remainder=True where the last batch is smaller, or pad."
            )
        spec = current
        yield element


class _Converter:
    """Converts leaves to NumPy arrays of at most 32 bits, with one warning about 64-bit arrays."""

    def __init__(self) -> None:
        self._warned = False

    def __call__(self, leaf: ArrayLike) -> np.ndarray:
        is_number = isinstance(leaf, int | float)
        array = np.asarray(leaf)
        wanted = jax.dtypes.canonicalize_dtype(array.dtype) if array.dtype.kind in "fiuc" else None
        if wanted is None or wanted == array.dtype:
            return array
        if array.dtype.kind in "iu" and array.size:
            limits = np.iinfo(wanted)
            if array.min() < limits.min or array.max() > limits.max:
                raise DataError(
                    f"An element of an infeed queue has {array.dtype} values from {array.min()} "
                    f"to {array.max()}, and devices hold {wanted}. Make them smaller in the data "
                    "set, by a modulus or as two numbers."
                )
        if not self._warned and not is_number:
            self._warned = True
            logger.warning(
                "The data set of an infeed queue has %s arrays, which become %s. Cast them in "
                "the data set to save the time.",
                array.dtype,
                wanted,
            )
        return array.astype(wanted)


def spec_text(spec: BatchSpec) -> str:
    """Returns a spec of elements as text."""
    return f"{spec} as {spec.treedef}"
