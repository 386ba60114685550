"""The data of a loop as blocks: an infeed for each epoch.

An infeed draws from one of these:

    ResidentArrays    arrays that stay on the devices: rows gathered in the order of the epoch
    stacked_blocks    all other data: batches stacked as they arrive
"""

import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

from millrace._compat.keras_data import DataAdapter, EpochOrder, is_array_adapter
from millrace.base.pytrees import ArrayTree
from millrace.programs.feeds.block import Block
from millrace.programs.feeds.blocks import BlockShape, ResidentArrays, stacked_blocks
from millrace.programs.feeds.infeed import Infeed
from millrace.programs.feeds.waiting import BatchWait
from millrace.programs.plan import Mode
from millrace.run.fit.controller import Controller
from millrace.run.fit.data_position import batch_name
from millrace.run.fit.multi_process import agree_on_order
from millrace.run.fit.whole_arrays import ResidentData

T = TypeVar("T")
BlockSource = Callable[[Callable[[], bool]], Iterator[Block]]


class EpochSteps(NamedTuple):
    """The steps of an epoch that its infeed prepares."""

    number: int  # of the epoch, from 1
    begun: int  # steps of it that had run before it was resumed
    sizes: Iterable[int]  # steps of each execution from there on
    steps_per_execution: int
    trained: int  # batches of the pass through the data that need not be read again
    reads_all: bool  # whether it reads the data from start to end
    has_length: bool


class EpochFeed:
    """The infeed of the running epoch, and what all epochs share."""

    def __init__(
        self,
        controller: Controller,
        mode: Mode,
        adapter: DataAdapter,
        arguments: Mapping[str, Any],
    ):
        self._controller, self._mode, self._adapter = controller, mode, adapter
        self._shuffle = arguments.get("shuffle", False)
        self._resident = ResidentData(controller.setup, adapter, arguments)
        self._order: EpochOrder | None = None  # of resident arrays
        self._is_closed = threading.Event()
        self.infeed: Infeed | None = None  # of the running epoch, once its first step is taken

    def is_resident(self, reads_all: bool) -> bool:
        """Whether epochs draw from arrays on the devices, and not from the data adapter."""
        return self._resident.arrays(reads_all) is not None

    def open(self, epoch: EpochSteps, batches: Callable[[], Iterator[ArrayTree]]) -> Infeed:
        """Starts the infeed of an epoch.

        Args:
            epoch: that begins.
            batches: returns those of the data adapter, in host memory.
        """
        controller = self._controller
        self._is_closed = threading.Event()
        wait = wait_of(controller, self._mode, epoch.number, epoch.begun)
        shape = self._shape(epoch)
        resident = self._resident.arrays(epoch.reads_all)
        if resident is not None:
            source = self._gathered(resident, shape, epoch.trained)
        else:
            source: BlockSource = functools.partial(
                stacked_blocks,
                _until(self._is_closed, batches(), wait),
                epoch.sizes,
                shape,
                controller.setup.destination,
            )
        # Slicing arrays runs no code of the user.
        is_at_hand = epoch.has_length and is_array_adapter(self._adapter)
        self.infeed = Infeed(
            source,
            controller.setup.options.feed.prefetch_depth,
            controller.activities,
            wait,
            sum(epoch.sizes) if is_at_hand else None,
        )
        if (recorder := controller.functions.recorder) is not None:
            recorder.opens(self.infeed, self._mode)
        return self.infeed

    def _shape(self, epoch: EpochSteps) -> BlockShape:
        controller = self._controller
        function = controller.functions.compiled.get(self._mode)
        return controller.feeds.block_shape(
            controller.setup,
            self._mode,
            epoch.steps_per_execution,
            shortened=None if function is None else function.shortened,
        )

    def _gathered(self, resident: ResidentArrays, shape: BlockShape, trained: int) -> BlockSource:
        # Drawn on the thread on which Keras would draw it, since it uses NumPy's generator.
        adapter: Any = self._adapter
        if self._order is None:
            self._order = EpochOrder(adapter, resident.rows, self._shuffle)
        order = self._order.draw()
        if self._shuffle:
            agree_on_order(self._controller.setup, order)
        left = order[trained * adapter.batch_size :]
        return lambda is_awaited: resident.blocks(left, adapter.batch_size, shape)

    def stop(self) -> None:
        """Lets the infeed draw no more batches."""
        self._is_closed.set()

    def close(self, wait: bool = True) -> None:
        """Ends the infeed, if there is one, and adds its counts to the totals.

        Args:
            wait: whether to wait for the batch that the data set is making.
        """
        if self.infeed is not None:
            self.stop()
            self.infeed.close(wait)
            self._controller.totals.add_infeed(self.infeed.statistics())
            if (recorder := self._controller.functions.recorder) is not None:
                recorder.closes(self.infeed)
            self.infeed = None


def wait_of(controller: Controller, mode: Mode, epoch: int, begun: int = 0) -> BatchWait:
    """Returns the wait for the batches of an epoch, of which the first `begun` have run."""
    limit = controller.setup.options.feed.max_wait_seconds
    return BatchWait(lambda number: batch_name(mode, epoch, begun + number), limit)


def _until(is_closed: threading.Event, batches: Iterator[T], wait: BatchWait) -> Iterator[T]:
    """Yields batches and counts them, and draws none once their infeed is closed."""
    while not is_closed.is_set():
        try:
            batch = next(batches)
        except StopIteration:
            return
        wait.add_drawn()
        yield batch
