"""A queue into a compiled program: each iteration of a loop takes an element of a data set.

    data set -> thread: NumPy, checked, stacked in blocks -> | block | block | -> the loops

The position in the data set belongs to the queue: a run continues where the last one ended, and
several programs may take elements from one queue.
"""

import contextlib
import itertools
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax

from millrace.base.checkpoints.object_state import ObjectState
from millrace.base.checkpoints.random_state import drawn_since, set_random_state
from millrace.base.devices import DeviceGroup
from millrace.base.options import whole_number
from millrace.base.records.statistics import FeedStatistics
from millrace.errors import CheckpointError, DataError, OptionError
from millrace.programs.feeds.block import Block, BlockSlice, Destination
from millrace.programs.feeds.blocks import BlockShape, stacked_blocks
from millrace.programs.feeds.infeed import Infeed
from millrace.programs.feeds.queue_source import (
    QueueSource,
    check_dataset,
    elements_of,
    is_used_up,
    length_of,
    spec_text,
)
from millrace.programs.feeds.source_position import FastForward, SourceState
from millrace.programs.feeds.waiting import POLL_SECONDS, BatchWait

MAX_DEPTH = 255
BLOCK_BYTES = 2**20
READ_AHEAD_SECONDS = 1.0  # for which a restored queue is awaited to have read ahead
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

    def __init__(self, dataset: object, prefetch_depth: int = 2):
        self._depth = whole_number("prefetch_depth", prefetch_depth, 1)
        if self._depth > MAX_DEPTH:
            raise OptionError(
                f"prefetch_depth must be at most {MAX_DEPTH}. Received: {prefetch_depth}. 2 is "
                "enough unless elements take very different times to make."
            )
        check_dataset(dataset)
        self._dataset = dataset
        self._lock = threading.RLock()
        self._feed: Infeed | None = None
        self._block: Block | None = None  # contains the next element
        self._next = 0  # index of the next element in it
        self._later: list[tuple[Block, int]] = []  # blocks after it, with such an index
        self._delivered = 0
        self._error: BaseException | None = None
        self._finalizer: Any = None
        self._is_read = False
        self._own_state: ObjectState | None = None  # attributes of the data set, once watched
        self._source: QueueSource | None = None
        _queues.add(self)

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
            if self._later:
                self._block, self._next = self._later.pop()
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

    def give_back(self, count: int, slices: Sequence[BlockSlice] = ()) -> None:
        """Puts back the `count` elements that were taken last.

        Args:
            count: number of elements.
            slices: in which they were taken, if in several; the last one is of the current block.
        """
        with self._lock:
            self._delivered -= count
            self._next -= count
            for earlier in reversed(slices[:-1]):
                if self._next >= 0:
                    break
                self._later.append((self._block, 0))  # type: ignore[arg-type]
                self._block = earlier.block
                self._next += earlier.start + earlier.count

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
            self._feed = self._block = self._error = self._finalizer = self._source = None
            self._next = self._delivered = 0
            self._later = []

    # Checkpoints of loops.

    def watch(self) -> None:
        """Notes the attributes of the data set, so that positions contain changes of them."""
        if self._own_state is None:
            self._own_state = ObjectState(self._dataset)

    def position(self) -> dict[str, Any]:
        """Returns the position in the data, and what it takes to come to it again, to be saved."""
        with self._lock:
            source = self._source
            if source is None:
                length = length_of(self._dataset)
                return {"delivered": 0, "length": length, "dataset": self._changes()}
            state = source.tracked.state_at(self._delivered) if source.tracked else None
            return {
                "delivered": self._delivered,
                "length": length_of(self._dataset),
                "elements": None if self._block is None else spec_text(self._block.spec),
                "dataset": source.dataset,
                "random": source.random,
                "source": None if state is None else [state.drawn, state.state],
                "kind": source.kind,
            }

    def check_position(self, position: Mapping[str, Any], where: str) -> None:
        """Refuses a position in data of another length.

        Args:
            position: that `position` has returned.
            where: of the checkpoint, for the message.

        Raises:
            CheckpointError: if the length differs, or the data can no longer be brought there.
        """
        length = length_of(self._dataset)
        if position["length"] != length and None not in (position["length"], length):
            raise CheckpointError(
                f"the data set has {length} elements here and had {position['length']} there"
            )
        if self._delivered and is_used_up(self._dataset):
            raise CheckpointError(
                f"{self._delivered} elements of its {type(self._dataset).__name__} have been used "
                f"before {where} is restored, and cannot be drawn again. Restore it before the "
                "first loop, or set a function that returns a new iterator as the data set"
            )

    def restore(self, position: Mapping[str, Any]) -> bool:
        """Brings the queue to a position; draws the elements before it again where it must.

        Args:
            position: that `position` has returned, here or in another process.

        Returns:
            Whether the data draws from the random generators that all share, which then are where
            they have to be.

        Raises:
            CheckpointError: if the elements have other shapes, or are fewer.
            Exception: an error of the data set.
        """
        with self._lock:
            if self._delivered or not is_used_up(self._dataset):
                self.close()
            if position["dataset"] is not None:
                self.watch()
                self._own_state.restore(position["dataset"])  # type: ignore[union-attr]
            if "random" not in position:
                return False
            if self._feed is None:
                set_random_state(position["random"])
                saved = position["source"]
                self._open(None if saved is None else SourceState(*saved), position["kind"])
                with contextlib.suppress(DataError):  # the data has ended there
                    self.block()
                self._delivered = 0 if self._source is None else self._source.begun
            try:
                self._skip_to(position["delivered"])
                self._check_elements(position["elements"])
            except CheckpointError:
                self.close()
                raise
            return self._draws_shared_numbers()

    def _skip_to(self, delivered: int) -> None:
        progress = FastForward("element", self._delivered, delivered)
        while self._delivered < delivered:
            try:
                self.take(delivered - self._delivered)
            except DataError as error:
                raise CheckpointError(
                    f"the data ends after {self._delivered} elements, and {delivered} were used "
                    "before the checkpoint"
                ) from error
            progress.has_drawn(self._delivered)

    def _check_elements(self, saved: str | None) -> None:
        try:
            own = spec_text((self._block or self.block()).spec)
        except DataError:  # the data has ended here: the next loop raises it
            return
        if saved not in (None, own):
            raise CheckpointError(f"an element is {own} here and was {saved} there")

    def _draws_shared_numbers(self) -> bool:
        """Whether the thread draws from the generators of Python and NumPy as it reads ahead."""
        feed, source = self._feed, self._source
        if feed is None or source is None or source.first is None:
            return False
        end = time.monotonic() + READ_AHEAD_SECONDS
        while feed.is_reading and time.monotonic() < end:
            time.sleep(POLL_SECONDS / 10)
        return not {"python", "numpy"}.isdisjoint(drawn_since(source.first))

    def __enter__(self) -> "InfeedQueue":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<InfeedQueue of {type(self._dataset).__name__}, {self._delivered} delivered>"

    def _open(self, begin: SourceState | None = None, kind: str = "") -> None:
        # Nothing that the thread has refers to the queue, so that it ends with the queue.
        source = QueueSource(self._dataset, begin, kind, self._changes())
        elements = elements_of(source.elements())
        shape = BlockShape(BLOCK_BYTES, (1, 1), {}, TOGETHER)
        host = Destination(DeviceGroup((jax.devices()[0],)), stays_on_host=True)

        def blocks(is_awaited: Callable[[], bool]) -> Iterator[Block]:
            return stacked_blocks(elements, itertools.repeat(1), shape, host, is_awaited)

        self._source = source
        wait = BatchWait("element {} of an infeed queue".format)
        self._feed = Infeed(blocks, self._depth, wait=wait)
        self._finalizer = weakref.finalize(self, self._feed.close)

    def _changes(self) -> dict[str, Any] | None:
        return None if self._own_state is None else self._own_state.changes()


_queues: "weakref.WeakSet[InfeedQueue]" = weakref.WeakSet()


def queues_in_use() -> list[InfeedQueue]:
    """Returns the queues of this process whose elements loops have taken."""
    return [queue for queue in list(_queues) if queue.delivered]
