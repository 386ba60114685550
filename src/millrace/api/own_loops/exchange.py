"""Exchange of data between a loop and the host, before and after each chunk of iterations.

    host    infeed.take ->  block, start, count
    loop                                           iterations
    host                                                       -> outs, used -> queue.receive

Replicas run their iterations together. Element j of the data set belongs to replica `j % R`: a
block is `[replicas of this process, iterations, ...]`, and taps are `[R, iterations, ...]`.

An exception on the host is kept and ends the loop early: the iterations before it count, and the
caller gets the exception itself. Ctrl-C is such an exception.
"""

import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import jax
import numpy as np

from millrace.api.own_loops.chunk import chunk_capacity
from millrace.base.interrupts import raise_if_interrupted
from millrace.base.pytrees import Array, ArrayTree
from millrace.errors import DataError
from millrace.programs.feeds.block import BlockSlice
from millrace.programs.feeds.infeed_queue import InfeedQueue
from millrace.programs.taps.outfeed_queue import OutfeedQueue
from millrace.programs.taps.taps import Tapped

MANY = np.iinfo(np.int32).max  # iterations of a loop that only its condition ends
# Largest factor from one chunk to the next. The first has one iteration, so that 1,024 take six
# chunks; a wrong time of a short chunk should not make the next one a hundred times too long.
GROWTH = 4


class ChunkTime(NamedTuple):
    """How long a chunk is to take, and how many chunks before it tell how long an iteration takes.

    The fastest of these chunks counts.
    """

    seconds: float
    chunks: int


# The host's call of a chunk takes 0.1 ms, mostly overlapped.
HOST_TIME = ChunkTime(2e-3, 1)
# A call for several devices takes longer: on a busy machine it is most of the time of a short
# chunk, and the chunk after it must not be shorter for that.
REPLICA_TIME = ChunkTime(8e-3, 8)
# Processes agree on the next chunk, which takes 1 to 3 ms. A loop without queues is in chunks so
# that Ctrl-C can end it.
LONG_TIME = ChunkTime(5e-2, 8)


class ChunkLength:
    """Chooses the length of the next chunk from the times of the last ones."""

    def __init__(self, capacity: int, chunk_time: ChunkTime):
        self._capacity, self._seconds = capacity, chunk_time.seconds
        self._of_iteration: deque[float] = deque(maxlen=chunk_time.chunks)  # seconds, in each chunk
        self._iterations = 1
        self._begin: float | None = None

    @property
    def iterations(self) -> int:
        """The largest number of iterations for the next chunk."""
        return self._iterations

    def begin(self) -> None:
        """Starts the clock of a chunk."""
        self._begin = time.perf_counter()

    def end(self, iterations: int) -> None:
        """Stops the clock, and adapts the length to the time of these iterations."""
        if self._begin is None or not iterations:
            return
        # The fastest counts: by the last one alone, the wait for a busy processor was taken for the
        # time of iterations, and chunks of ten became chunks of two, of which more is waiting.
        self._of_iteration.append(max((time.perf_counter() - self._begin) / iterations, 1e-9))
        self._begin = None
        fastest = min(self._of_iteration)
        fitting = min(int(self._seconds / fastest), GROWTH * self._iterations, self._capacity)
        self._iterations = max(1, fitting)


class Portion(NamedTuple):
    """The elements of the next chunk."""

    block: Any  # a tree of [capacity, ...]; None without an infeed
    start: int
    iterations: int  # 0 ends the loop


def deliver_one(tapped: Tapped) -> None:
    """Gives queues the taps of one iteration, or of a function outside of all loops."""
    for queue, value in tapped.items():
        queue.expect()
        queue.receive(jax.tree.map(lambda leaf: np.array(leaf)[None], value), 1)


# The host calls the loop, and no program calls back into Python. A callback holds one of the few
# threads of XLA's CPU client, and the copy of an array that it asks for needs another one: with two
# replicas in a process, both waited in callbacks, and the copies were never made.
class Exchange:
    """The host's side of one loop in one program."""

    def __init__(
        self,
        infeed: InfeedQueue | None,
        tapped: Tapped,
        chunk_time: ChunkTime = HOST_TIME,
        replicas: int = 1,
        local: Sequence[int] = (0,),
        may_end_early: bool = False,
    ):
        """Waits for the infeed's first element, for its shape.

        Args:
            infeed: of the loop; None without one.
            tapped: queues, and specs of their elements from one iteration of one replica.
            chunk_time: how long a chunk is to take.
            replicas: number of replicas that run each iteration together.
            local: those of them that run in this process.
            may_end_early: whether the loop may end before it has used all of a portion.
        """
        self.infeed = infeed
        self.queues: tuple[OutfeedQueue, ...] = tapped.keys  # type: ignore[assignment]
        capacity = None
        self.empty: ArrayTree = None  # a block of zeros
        if infeed is not None:
            block = infeed.block()
            capacity, self._spec = block.capacity, block.spec
            self.empty = jax.tree.map(np.zeros_like, block.batches)
            if replicas > 1:
                # Replicas must use all elements that they take: they cannot put any back.
                capacity = 1 if may_end_early else max(1, capacity // replicas)
                self.empty = jax.tree.map(
                    lambda leaf: np.zeros((len(local), capacity, *leaf.shape[1:]), leaf.dtype),
                    block.batches,
                )
        self.replicas, self._local = replicas, local
        self.capacity = MANY
        if infeed is not None or tapped:
            self.capacity = chunk_capacity(tapped, capacity)
        self.error: BaseException | None = None
        self._length = ChunkLength(self.capacity, chunk_time)
        self._taken = 0  # iterations in the last portion
        self._last = self._held = Portion(self.empty, 0, 0)

    @contextmanager
    def of_run(self) -> Iterator[None]:
        """Surrounds a run of the program, and tells the queues."""
        self.error, self._taken = None, 0
        with ExitStack() as stack:
            for queue in self.queues:
                stack.enter_context(queue.filled())
            try:
                yield
            finally:
                self.error = None

    def portion(self, remaining: int) -> Portion:
        """Returns the elements of the next chunk, of `remaining` iterations or fewer."""
        try:
            portion = self._portion(min(remaining, self._length.iterations))
        except BaseException as error:  # raised by the loop, after the iterations before it
            self.error = error
            portion = Portion(self.empty, 0, 0)
        self._taken, self._last = portion.iterations, portion
        self._length.begin()
        return portion

    def _portion(self, at_most: int) -> Portion:
        if self.error is not None or at_most < 1:
            return Portion(self.empty, 0, 0)
        raise_if_interrupted()
        if self.infeed is None:
            return Portion(None, 0, at_most)
        if held := self._held.iterations:
            portion = self._held._replace(iterations=min(held, at_most))
            rest = held - portion.iterations
            self._held = portion._replace(start=portion.start + portion.iterations, iterations=rest)
            return portion
        if (spec := self.infeed.block().spec) != self._spec:
            raise DataError(
                f"The elements of {self.infeed!r} are {spec} now, and the loop was compiled for "
                f"{self._spec}. Use a queue for each kind of element."
            )
        if self.replicas > 1:
            return self._portion_of_replicas(self.infeed, at_most)
        elements = self.infeed.take(at_most)
        return Portion(elements.block.batches, elements.start, elements.count)

    def _portion_of_replicas(self, infeed: InfeedQueue, at_most: int) -> Portion:
        """Copies the elements that are ready, and those that complete an iteration of all."""
        block = jax.tree.map(np.empty_like, self.empty)
        taken, missing = 0, at_most * self.replicas
        slices: list[BlockSlice] = []
        while missing:
            try:
                slices.append(infeed.take(missing))
            except BaseException as error:
                if not isinstance(error, Exception):  # Ctrl-C: nothing that was taken is lost
                    self.error = error
                    infeed.give_back(taken % self.replicas, slices)
                elif taken < self.replicas:
                    raise
                break  # the queue raises it again, after the iterations that have elements
            self._copy_elements(block, taken, slices[-1])
            taken += slices[-1].count
            missing = -taken % self.replicas
        return Portion(block, 0, taken // self.replicas)

    def _copy_elements(self, block: ArrayTree, taken: int, elements: BlockSlice) -> None:
        """Copies the elements of these replicas into a block that has `taken` of all already."""
        end = elements.start + elements.count
        targets: list[np.ndarray] = jax.tree.leaves(block)
        sources: list[Array] = jax.tree.leaves(elements.block.batches)
        for target, source in zip(targets, sources, strict=True):
            for own, replica in zip(target, self._local, strict=True):
                first = (replica - taken) % self.replicas
                row = (taken + first) // self.replicas
                mine = np.asarray(source)[elements.start + first : end : self.replicas]
                own[row : row + len(mine)] = mine

    def deliver(self, values: Sequence[ArrayTree], used: int) -> None:
        """Gives the taps of a chunk to the queues: for each a tree of `[capacity, ...]`."""
        try:
            # Copied: it has `capacity` entries, and the queue may keep it.
            entries = jax.tree.map(lambda leaf: self._entries(np.asarray(leaf), used), values)
            self._length.end(used)
            for queue, entry in zip(self.queues, entries, strict=True):
                if used:
                    queue.expect()
                    queue.receive(entry, used)
        except BaseException as error:
            self.error = self.error or error

    def _entries(self, taps: np.ndarray, used: int) -> np.ndarray:
        return np.array(taps[:used] if self.replicas == 1 else taps[:, :used].swapaxes(0, 1))

    def give_back(self, used: int) -> None:
        """Puts elements of the last portion back that the loop did not use."""
        unused = self._taken - used
        if self.infeed is not None and unused > 0:
            if self.replicas == 1:
                self.infeed.give_back(unused)
            else:  # where processes agree on fewer iterations; the next portion begins with them
                start, more = self._last.start + used, unused + self._held.iterations
                self._held = self._last._replace(start=start, iterations=more)
        self._taken = used
