"""A queue into a compiled program: each iteration of a loop takes an element of a data set.

    data set -> thread: NumPy, checked, stacked in blocks -> | block | block | -> the loops

The position in the data set belongs to the queue: a run continues where the last one ended, and
several programs may take elements from one queue.
"""

import itertools
import logging
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import keras
import numpy as np
from numpy.typing import ArrayLike

from millrace.arguments import checked
from millrace.devices import DeviceGroup
from millrace.errors import DataError, OptionError
from millrace.feeds.block import Block, BlockSlice, Destination, batch_spec
from millrace.feeds.blocks import BlockShape, stacked_blocks
from millrace.feeds.infeed import Infeed
from millrace.feeds.waiting import BatchWait
from millrace.options import whole_number
from millrace.plan import BatchSpec
from millrace.pytrees import ArrayTree
from millrace.records.statistics import FeedStatistics

logger = logging.getLogger("millrace")

MAX_DEPTH = 255
BLOCK_BYTES = 2**20
TOGETHER = 128  # small elements in a block: a hand-over of 0.2 ms is then 2 us for each


class InfeedQueue:
    """Feeds the elements of a data set to the loops of compiled programs, in order.

    Args:
        dataset: any iterable: a `tf.data.Dataset`, a `DataLoader`, a grain data set, a list, a
            generator, a `keras.utils.PyDataset`, or a function that returns one of these. Elements
            are arrays, or tuples and dicts of arrays, all of one shape.
        prefetch_depth: blocks that are prepared ahead, from 1 to 255. A block is one element, or
            up to 128 small elements of 1 MiB together.

    Raises:
        OptionError: for a depth out of range.
        DataError: if `dataset` cannot be iterated, or has no fixed shapes.
    """

    @checked
    def __init__(self, dataset: object, prefetch_depth: int = 2):
        self._depth = whole_number("prefetch_depth", prefetch_depth, 1)
        if self._depth > MAX_DEPTH:
            raise OptionError(
                f"prefetch_depth must be at most {MAX_DEPTH}. Received: {prefetch_depth}. 2 is "
                "enough unless elements take very different times to make."
            )
        _check_dataset(dataset)
        self._dataset = dataset
        self._lock = threading.RLock()
        self._feed: Infeed | None = None
        self._block: Block | None = None  # contains the next element
        self._next = 0  # index of the next element in it
        self._delivered = 0
        self._error: BaseException | None = None
        self._finalizer: Any = None
        self._is_read = False

    @property
    def is_read(self) -> bool:
        """Whether a program has asked for elements."""
        return self._is_read

    @property
    def dataset(self) -> Any:
        """The data set."""
        return self._dataset

    @property
    def prefetch_depth(self) -> int:
        """Blocks that are prepared ahead."""
        return self._depth

    def block(self) -> Block:
        """Waits for the block that contains the next element, and returns it.

        Raises:
            DataError: if the data has ended.
            Exception: an error of the data set.
        """
        with self._lock:
            self._is_read = True
            if self._block is not None and self._next < self._block.steps:
                return self._block
            if self._error is not None:
                raise self._error
            if self._feed is None:
                self._open()
            try:
                block_slice = next(self._feed.take(TOGETHER), None)  # type: ignore[union-attr]
            except BaseException as error:
                if isinstance(error, Exception):  # and not Ctrl-C while waiting
                    self._error = error
                raise
            if block_slice is None:
                self._error = DataError(
                    f"The data set of an infeed queue has ended after {self._delivered} elements, "
                    "and a loop asks for one more. Run the loop for at most as many iterations as "
                    "elements are left, repeat the data set, or call close() on the queue to start "
                    "again."
                )
                raise self._error
            self._block, self._next = block_slice.block, 0
            return block_slice.block

    def take(self, at_most: int) -> BlockSlice:
        """Takes the next elements: all that remain in one block, at least one.

        Args:
            at_most: most elements to take.

        Raises:
            DataError: if the data has ended.
            Exception: an error of the data set.
        """
        with self._lock:
            block = self.block()
            start, count = self._next, min(at_most, block.steps - self._next)
            self._next += count
            self._delivered += count
            return BlockSlice(block, start, count)

    def give_back(self, count: int) -> None:
        """Puts back the `count` elements that were taken last."""
        with self._lock:
            self._next -= count
            self._delivered -= count

    @property
    def delivered(self) -> int:
        """Number of elements that loops have taken since the data set began."""
        return self._delivered

    def statistics(self) -> FeedStatistics:
        """Returns the counts, bytes and seconds of blocks since the data set began."""
        return FeedStatistics() if self._feed is None else self._feed.statistics()

    def close(self) -> None:
        """Ends the queue's thread. The next use of the queue starts the data set again."""
        with self._lock:
            if self._finalizer is not None:
                self._finalizer()
            self._feed = self._block = self._error = self._finalizer = None
            self._next = self._delivered = 0

    def __enter__(self) -> "InfeedQueue":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<InfeedQueue of {type(self._dataset).__name__}, {self._delivered} delivered>"

    def _open(self) -> None:
        # Nothing here refers to the queue, so that its thread ends when it is garbage collected.
        elements = _elements(self._dataset)
        shape = BlockShape(BLOCK_BYTES, (1, 1), {}, TOGETHER)
        host = Destination(DeviceGroup((jax.devices()[0],)), stays_on_host=True)

        def blocks(is_awaited: Callable[[], bool]) -> Iterator[Block]:
            return stacked_blocks(elements, itertools.repeat(1), shape, host, is_awaited)

        wait = BatchWait("element {} of an infeed queue".format)
        self._feed = Infeed(blocks, self._depth, wait=wait)
        self._finalizer = weakref.finalize(self, self._feed.close)


def _check_dataset(dataset: object) -> None:
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


def _elements(dataset: object) -> Iterator[ArrayTree]:
    """Yields elements as NumPy arrays, and checks that their specs are equal."""
    convert = _Converter()
    spec: BatchSpec | None = None
    for index, element in enumerate(_iterated(dataset)):
        element = jax.tree.map(convert, element)
        current = batch_spec(element)
        if spec is not None and current != spec:
            raise DataError(
                f"Element {index} of an infeed queue's data set is {_text(current)}, and the first "
                f"one is {_text(spec)}. A compiled loop takes elements of one structure and "
                "shape: set drop_remainder=True where the last batch is smaller, or pad."
            )
        spec = current
        yield element


def _iterated(dataset: Any) -> Iterable[Any]:
    if not hasattr(dataset, "__iter__") and not hasattr(dataset, "__getitem__"):
        dataset = dataset()
        _check_dataset(dataset)
    if hasattr(dataset, "as_numpy_iterator"):
        return dataset.as_numpy_iterator()
    if isinstance(dataset, keras.utils.PyDataset):
        return _batches(dataset)
    return dataset


def _batches(dataset: keras.utils.PyDataset) -> Iterator[Any]:
    number = dataset.num_batches
    for index in itertools.count() if number is None else range(number):
        yield dataset[index]
    dataset.on_epoch_end()


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


def _text(spec: BatchSpec) -> str:
    return f"{spec} as {spec.treedef}"
