"""What a loop and the host give each other between two chunks of iterations.

    host    infeed.take ->  block, start, count
    loop                                           turn turn turn
    host                                                          -> outs, used -> queue.receive

Replicas make their turns together: a block has an element for each of them, `[turns, R, ...]`, in
the order of the data set, and so has what they tap.

An exception on the host is kept and ends the loop early, so what has been computed by then is not
lost, and the caller sees the exception itself and not what JAX makes of it.
"""

import time
from typing import Any, NamedTuple

import jax
import numpy as np

from millrace.errors import DataError
from millrace.feeds.block import BlockSlice
from millrace.feeds.infeed_queue import InfeedQueue
from millrace.loops.chunk import chunk_capacity
from millrace.taps.taps import Tapped

HOST_SECONDS = 2e-3  # of a chunk that the host calls: beside 0.1 ms, most of it overlapped
CALLBACK_SECONDS = 8e-3  # between two callbacks: beside 0.5 ms, in which the device waits
GROWTH = 4  # from one chunk to the next, at most


class Pace:
    """Chooses the turns of the next chunk from the time that the last ones took."""

    def __init__(self, capacity: int, seconds: float):
        self._capacity, self._seconds = capacity, seconds
        self._turns = 1
        self._begin: float | None = None

    @property
    def turns(self) -> int:
        """Turns that the next chunk should have at most."""
        return self._turns

    def begin(self) -> None:
        """Starts the clock of a chunk."""
        self._begin = time.perf_counter()

    def end(self, turns: int) -> None:
        """Stops it."""
        if self._begin is None or not turns:
            return
        per_turn = max((time.perf_counter() - self._begin) / turns, 1e-9)
        self._begin = None
        wanted = min(int(self._seconds / per_turn), GROWTH * self._turns, self._capacity)
        self._turns = max(1, wanted)


class Portion(NamedTuple):
    """What the host gives a loop for its next chunk."""

    block: Any  # leaves [capacity, ...]; None without an infeed
    start: int
    turns: int  # 0 ends the loop


class Exchange:
    """The host's side of one loop in one program."""

    def __init__(
        self,
        infeed: InfeedQueue | None,
        tapped: Tapped,
        seconds: float = HOST_SECONDS,
        replicas: int = 1,
        may_end_early: bool = False,
    ):
        """Waits for the infeed's first element, which tells its shape.

        Args:
            infeed: None if the loop has none.
            tapped: queues, and specs of what one turn of one replica gives them.
            seconds: that a chunk is to take.
            replicas: that make each turn together.
            may_end_early: whether a loop may not use all turns of a portion.
        """
        self.infeed = infeed
        self.keys: tuple[Any, ...] = tapped.keys
        capacity = None
        self.empty: Any = None  # a block of zeros
        if infeed is not None:
            block = infeed.block()
            capacity, self._spec = block.capacity, block.spec
            self.empty = jax.tree.map(np.zeros_like, block.batches)
            if replicas > 1:
                # What a loop of replicas takes it uses: they have no way to put elements back.
                capacity = 1 if may_end_early else max(1, capacity // replicas)
                self.empty = jax.tree.map(
                    lambda leaf: np.zeros((capacity, replicas, *leaf.shape[1:]), leaf.dtype),
                    block.batches,
                )
        self.replicas = replicas
        self.capacity = chunk_capacity(tapped, capacity)
        self.error: BaseException | None = None
        self._pace = Pace(self.capacity, seconds)
        self._given = 0

    def open(self) -> None:
        """Begins a run of the program."""
        self.error = None
        self._given = 0
        for queue in self.keys:
            queue.expect()

    def close(self, failure: BaseException | None = None) -> BaseException | None:
        """Ends a run: nothing more will arrive.

        Args:
            failure: what has ended the program; None if it came to its end.

        Returns:
            What failed on the host, or the failure; None if nothing did.
        """
        error, self.error = self.error or failure, None
        for queue in self.keys:
            if error is not None:
                queue.fail(error)
            else:
                queue.receive((), 0)
        return error

    def portion(self, remaining: int) -> Portion:
        """Returns what the next chunk is to run on."""
        try:
            portion = self._portion(min(remaining, self._pace.turns))
        except BaseException as error:  # raised by `close`, in the caller
            self.error = error
            portion = Portion(self.empty, 0, 0)
        self._given = portion.turns
        self._pace.begin()
        return portion

    def _portion(self, wanted: int) -> Portion:
        if self.error is not None or wanted < 1:
            return Portion(self.empty, 0, 0)
        if self.infeed is None:
            return Portion(None, 0, wanted)
        if (spec := self.infeed.block().spec) != self._spec:
            raise DataError(
                f"The elements of {self.infeed!r} are {spec} now, and the loop was compiled for "
                f"{self._spec}. Use a queue for each kind of element."
            )
        if self.replicas > 1:
            return self._portion_of_replicas(wanted)
        segment = self.infeed.take(wanted)
        return Portion(segment.block.batches, segment.start, segment.count)

    def _portion_of_replicas(self, wanted: int) -> Portion:
        """Copies elements together: what is ready, and what is missing to a whole turn."""
        block = jax.tree.map(np.zeros_like, self.empty)
        flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), block)  # the same
        taken, missing = 0, wanted * self.replicas
        while missing:
            try:
                segment = self.infeed.take(missing)  # type: ignore[union-attr]
            except Exception:
                if taken < self.replicas:
                    raise
                break  # the queue raises it again, after the turns that there are elements for
            _copy_rows(flat, taken, segment)
            taken += segment.count
            missing = -taken % self.replicas
        return Portion(block, 0, taken // self.replicas)

    def deliver(self, values: Any, used: int) -> None:
        """Takes what a chunk has tapped: for each queue a tree of `[capacity, ...]`."""
        try:
            # Copied: the memory is the program's, or has more room than is in use.
            entries = jax.tree.map(lambda leaf: np.array(np.asarray(leaf)[:used]), values)
            self._pace.end(used)
            for queue, entry in zip(self.keys, entries, strict=True):
                if used:
                    queue.expect()
                    queue.receive(entry, used)
        except BaseException as error:
            self.error = self.error or error

    def give_back(self, used: int) -> None:
        """Puts elements back that the last portion had and the loop did not use."""
        if self.infeed is not None and used < self._given:
            self.infeed.give_back(self._given - used)
        self._given = used


def _copy_rows(to: Any, at: int, segment: BlockSlice) -> None:
    rows = slice(segment.start, segment.start + segment.count)
    for target, leaf in zip(
        jax.tree.leaves(to), jax.tree.leaves(segment.block.batches), strict=True
    ):
        target[at : at + segment.count] = leaf[rows]
