"""The throughput of a data set, in host memory and through the infeed.

    data set --> thread --> |  |  |  | --> take()        at most DEPTH wait

Elements are handed over in groups. A thread that wakes another one, and shares the interpreter's
lock with it, loses some 80 us on a virtual machine: with batches that take 2 ms each, 4 % of the
time one by one, 2 % in groups of 5 and 1 % in groups of 16.

    dataset_benchmark   data set --> thread --> queue --> copy               host only
    infeed_benchmark    data set --> thread stacks blocks --> infeed --> device

Both read ahead by a few elements or blocks, as training does.
"""

import itertools
import queue
import threading
import time
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from millrace.base.devices import DeviceGroup, find_devices, home
from millrace.base.options import Feed
from millrace.base.pytrees import ArrayTree
from millrace.programs.feeds.block import Block, Destination
from millrace.programs.feeds.blocks import BlockShape, stacked_blocks
from millrace.programs.feeds.infeed import Infeed
from millrace.tools.benchmark.sources import BatchSource, opened
from millrace.tools.benchmark.supply import Arrivals, checked, measure

DEPTH = 32
GROUP = 16  # half of the depth: one group is filled while the other is taken
LINGER_SECONDS = 0.04  # slower elements are handed over one by one
JOIN_SECONDS = 5.0  # for which `close` waits for a data set that is busy with an element


class ElementQueue:
    """Elements of a data set, drawn ahead of time."""

    def __init__(self, elements: Iterator[ArrayTree], epochs: int, each: int):
        """Starts the thread.

        Args:
            elements: iterator, of which at most `epochs * each` elements are drawn.
            epochs: number of epochs.
            each: elements in an epoch; the last one is handed over at once, with its group.
        """
        self._ready: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._slots: queue.SimpleQueue[None] = queue.SimpleQueue()  # one for each free place
        self._free(DEPTH)
        self._stopped = False
        self._thread = threading.Thread(
            target=self._fill, args=(elements, epochs, each), name="millrace-benchmark", daemon=True
        )
        self._thread.start()

    def take(self) -> Iterator[Any]:
        """Yields elements as they arrive, until the data ends.

        Raises the data set's own errors here, with their tracebacks.
        """
        while True:
            group = self._ready.get()
            if group is None:
                return
            if isinstance(group, BaseException):
                raise group
            self._free(len(group))
            yield from group

    def close(self) -> None:
        """Ends the thread, and drops the elements that were not taken."""
        self._stopped = True
        self._free(1)
        self._thread.join(JOIN_SECONDS)

    def _free(self, slots: int) -> None:
        for _ in range(slots):
            self._slots.put(None)

    def _fill(self, elements: Iterator[ArrayTree], epochs: int, each: int) -> None:
        group: list[ArrayTree] = []
        end: BaseException | None = None
        sent = 0.0  # hands the first element over at once
        try:
            for number, element in enumerate(itertools.islice(elements, epochs * each), 1):
                self._slots.get()
                if self._stopped:
                    return
                group.append(element)
                now = time.perf_counter()
                if len(group) == GROUP or now - sent > LINGER_SECONDS or number % each == 0:
                    self._ready.put(group)
                    group, sent = [], now
        except BaseException as error:  # of any kind: the owner of the queue raises it
            end = error
        finally:
            self._ready.put(group)
            self._ready.put(end)


def dataset_benchmark(
    dataset: BatchSource,
    number_of_epochs: int,
    elements_per_epochs: int,
    *,
    print_stats: bool = True,
    do_memcpy: bool = True,
) -> str:
    """Measures how fast a data set supplies elements to this process, without any device.

    A thread draws elements into a short queue, and the caller takes them out. One element is one
    batch. The data set is opened once for all epochs, so it must have at least
    `number_of_epochs * elements_per_epochs` elements; no more than these are drawn.

        result = json.loads(millrace.dataset_benchmark(dataset.repeat(), 5, 100))
        result["epochs"][-1]["elements_per_second"]

    Args:
        dataset: a tf.data.Dataset, a DataLoader of torch or grain, a keras.utils.PyDataset, any
            iterable of batches, or a function without arguments that returns one of these.
        number_of_epochs: number of epochs, each timed separately.
        elements_per_epochs: elements in each epoch.
        print_stats: whether to print elements and bytes per second of each epoch.
        do_memcpy: whether to copy every element once, as training would.

    Returns:
        JSON. `epochs` is a list with `elements_processed`, `total_bytes_processed` (in host
        memory), `time_elapsed` (seconds), `elements_per_second` and `bandwidth` (1e9 bytes per
        second) of each epoch. `first_element_seconds` is measured from the opening of the data
        set, and is part of the first epoch's time.

    Raises:
        OptionError: if a number is below 1.
        DTypeError: if `dataset` cannot be iterated, or its elements contain no arrays.
        DataError: if the data ends too early; the message has the number of elements.
    """
    options = checked(number_of_epochs, elements_per_epochs, print_stats, do_memcpy)
    begin = time.perf_counter()
    with opened(dataset) as source:
        queue = ElementQueue(source, options.epochs, options.elements)
        arrivals = _copied(queue.take()) if options.copies else map(_size, queue.take())
        try:
            return measure(lambda count: itertools.islice(arrivals, count), options, begin)
        finally:
            queue.close()


def _copied(elements: Iterator[ArrayTree]) -> Arrivals:
    targets: list[np.ndarray] = []
    for element in elements:
        leaves: list[np.ndarray] = jax.tree.leaves(element)
        if [(t.shape, t.dtype) for t in targets] != [(x.shape, x.dtype) for x in leaves]:
            targets = [np.empty_like(leaf, order="C") for leaf in leaves]
        for target, leaf in zip(targets, leaves, strict=True):
            np.copyto(target, leaf)
        yield 1, sum(leaf.nbytes for leaf in leaves)


def _size(element: ArrayTree) -> tuple[int, int]:
    return 1, sum(leaf.nbytes for leaf in jax.tree.leaves(element))


def infeed_benchmark(
    infeed_queue: BatchSource,
    number_of_epochs: int,
    elements_per_epochs: int,
    *,
    print_stats: bool = True,
    do_memcpy: bool = True,
) -> str:
    """Measures how fast batches reach the first device through millrace's infeed.

    As in `fit`, a thread stacks elements into blocks and starts their transfer; the caller waits
    for each block to arrive, and does not use it.

    Args:
        infeed_queue: an infeed queue, or any data set as in `dataset_benchmark`.
        number_of_epochs: number of epochs, each timed separately.
        elements_per_epochs: elements in each epoch. No block extends over two epochs.
        print_stats: whether to print elements and bytes per second of each epoch.
        do_memcpy: whether blocks are transferred to the device, or left in host memory.

    Returns:
        JSON as in `dataset_benchmark`. Bytes are those that arrive: of 64-bit numbers, 32 bits.

    Raises:
        OptionError: if a number is below 1.
        DTypeError: if the data set cannot be iterated, or its elements contain no arrays.
        DataError: if the data ends too early, or the device cannot represent it.
    """
    options = checked(number_of_epochs, elements_per_epochs, print_stats, do_memcpy)
    feed = Feed()
    depth = getattr(infeed_queue, "prefetch_depth", None) or feed.prefetch_depth
    device = home(find_devices(None))
    destination = Destination(DeviceGroup((device,)), stays_on_host=not options.copies)
    shape = BlockShape(feed.max_block_bytes, multiples=(options.elements, 1), capacities={})
    begin = time.perf_counter()
    with opened(infeed_queue) as source:
        blocks = stacked_blocks(source, [options.elements] * options.epochs, shape, destination)
        infeed = Infeed(lambda is_awaited: blocks, depth)

        def take(count: int) -> Arrivals:
            for segment in infeed.take(count):
                if options.copies:
                    _wait(segment.block, destination)
                yield segment.count, segment.count * segment.block.spec.nbytes

        try:
            return measure(take, options, begin)
        finally:
            infeed.close()


def _wait(block: Block, destination: Destination) -> None:
    leaves = jax.tree.leaves(block.batches)
    if destination.is_host_memory:  # there the runner, not the feed, passes blocks to JAX
        leaves = destination.put(leaves)
    jax.block_until_ready(leaves)
