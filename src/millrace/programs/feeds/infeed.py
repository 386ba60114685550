"""A bounded queue of blocks that a thread fills."""

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator

from millrace.base.activities import Activities
from millrace.base.interrupts import is_held_back, raise_if_interrupted
from millrace.base.records.statistics import FeedStatistics
from millrace.programs.feeds.block import Block, BlockSlice
from millrace.programs.feeds.waiting import POLL_SECONDS, BatchWait

JOIN_SECONDS = 5.0  # longest time that `close` waits for a data set that is making a batch
# Threads that were not joined, since the user wanted to stop at once. Each is in the middle of a
# batch, so its data set cannot be asked for another one yet.
_left_behind: "weakref.WeakSet[threading.Thread]" = weakref.WeakSet()


def wait_for_interrupted() -> None:
    """Waits for batches that data sets were making when the user interrupted a loop."""
    for thread in list(_left_behind):
        thread.join(JOIN_SECONDS)


class Infeed:
    """Blocks of one epoch, prepared ahead of the loop that takes them.

    The thread starts at once and ends with the data, with an exception, or with `close`. It keeps
    at most `depth` blocks ready besides the one that it is filling. An exception of the data set is
    raised again where its block would have been taken, with its own traceback and a note that
    names the batch.

    With `steps_at_hand` the first block is made where it is taken, and the thread starts only if
    others follow: to start one and to wait for it takes longer than a step of a small model.
    """

    def __init__(
        self,
        make_blocks: Callable[[Callable[[], bool]], Iterator[Block]],
        depth: int,
        activities: Activities | None = None,
        wait: BatchWait | None = None,
        steps_at_hand: int | None = None,
    ):
        """Starts preparing blocks.

        Args:
            make_blocks: returns the blocks; its argument is a function that tells whether none is
                ready.
            depth: most blocks kept ready.
            activities: gets the times at which blocks were prepared and waited for, if wanted.
            wait: names batches in messages and limits the wait for one; by default without limit.
            steps_at_hand: the number of all steps, if no code of the user makes them.
        """
        self._activities = activities
        self._wait = wait or BatchWait("batch {:,}".format)
        self._depth = depth
        self._ready: deque[Block] = deque()
        # A block that is made where it is taken may be as long as it can be.
        self._blocks = make_blocks(lambda: self._thread is not None and not self._ready)
        self._change = threading.Condition()
        self._ended = False  # no block will follow those in `_ready`
        self._stopped = False
        self._error: BaseException | None = None
        self._current: Block | None = None
        self._used = 0  # steps taken from `_current`
        # Each counter is written by one of the two threads only.
        self._blocks_taken = self._steps_taken = self._bytes_taken = self._peak_depth = 0
        self._prepare_seconds = self._wait_seconds = 0.0
        self._steps_at_hand = steps_at_hand
        self._thread: threading.Thread | None = None
        if steps_at_hand is None:
            self._start()

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._fill, name="millrace-infeed", daemon=True)
        self._thread.start()

    def take(self, steps: int) -> Iterator[BlockSlice]:
        """Yields the next `steps` steps as they become ready; fewer where the data ends."""
        while steps:
            block = self._block()
            if block is None:
                return
            count = min(steps, block.steps - self._used)
            block_slice = BlockSlice(block, block.first + self._used, count)
            self._used += count
            steps -= count
            yield block_slice

    def at_hand(self) -> BlockSlice | None:
        """Takes the next step if it is in the block of the one before; None where it is not."""
        block = self._current
        if block is None or self._used >= block.steps:
            return None
        self._used += 1
        return BlockSlice(block, block.first + self._used - 1, 1)

    def has_more(self) -> bool:
        """Waits until it is known whether another step follows."""
        return self._block() is not None

    def close(self, wait: bool = True) -> None:
        """Ends the thread. Blocks that were prepared and not taken are dropped.

        Args:
            wait: waits for a batch that the data set is making; if False, the thread ends after it.
                Nothing waits for a data set that has reached the limit of its wait.
        """
        with self._change:
            self._stopped = True
            self._ready.clear()
            self._change.notify_all()
        if self._thread is None or self._wait.is_over:
            pass  # or the next call would wait in vain, too
        elif wait:
            self._thread.join(JOIN_SECONDS)
        elif self._thread.is_alive():
            _left_behind.add(self._thread)
        self._current = None

    @property
    def ready(self) -> int:
        """Blocks that are ready now."""
        return len(self._ready)

    @property
    def is_reading(self) -> bool:
        """Whether the thread is making a block, and has not reached the end or the limit."""
        with self._change:
            return not self._ended and len(self._ready) < self._depth

    @property
    def limit(self) -> int:
        """Most blocks kept ready."""
        return self._depth

    def statistics(self) -> FeedStatistics:
        """Returns the counts, bytes and seconds so far."""
        return FeedStatistics(
            blocks=self._blocks_taken,
            steps=self._steps_taken,
            bytes=self._bytes_taken,
            prepare_seconds=self._prepare_seconds,
            wait_seconds=self._wait_seconds,
            peak_depth=self._peak_depth,
        )

    def _block(self) -> Block | None:
        if self._current is not None and self._used < self._current.steps:
            return self._current
        begin = time.perf_counter()
        if self._activities is not None:
            self._activities.begin("host", "wait for data", begin)
        block = self._first() if self._thread is None else self._awaited(self._thread)
        end = time.perf_counter()
        self._wait_seconds += end - begin
        if self._activities is not None:
            self._activities.add("host", "wait for data", begin, end)
        self._current, self._used = block, 0
        if block is None:
            if self._error is not None:
                error, self._error = self._error, None
                self._wait.add_note(error, self._steps_taken)  # all before it have been taken
                raise error
            return None
        self._blocks_taken += 1
        self._steps_taken += block.steps
        self._bytes_taken += block.steps * block.spec.nbytes
        return block

    def _first(self) -> Block | None:
        """Makes a block in the thread that takes it; another thread makes those after it."""
        block = None
        try:
            block = None if self._ended else self._next()
        except Exception as error:  # raised by `_block`, as those of the other thread
            self._error = error
        if block is None or block.steps >= (self._steps_at_hand or 0):
            self._ended = True
        else:
            self._start()
        return block

    def _awaited(self, thread: threading.Thread) -> Block | None:
        """Waits for the next block of the thread that makes them."""
        with self._change:
            began = time.monotonic()
            while not self._ready and not self._ended:
                raise_if_interrupted()
                due = self._wait.check(began, thread)
                self._change.wait(min(POLL_SECONDS, due) if is_held_back() else due)
            block = self._ready.popleft() if self._ready else None
            self._change.notify_all()
        return block

    def _next(self) -> Block | None:
        begin = time.perf_counter()
        if self._activities is not None:
            self._activities.begin("infeed", "block", begin)
        block = next(self._blocks, None)
        end = time.perf_counter()
        self._prepare_seconds += end - begin
        if self._activities is not None:
            steps = block.steps if block is not None else 0
            self._activities.add("infeed", f"block of {steps} steps", begin, end)
        return block

    def _fill(self) -> None:
        try:
            while not self._stopped:
                block = self._next()
                if block is None or not self._put(block):
                    break
        except BaseException as error:  # of any kind: raised again in the owner's thread
            self._error = error
        finally:
            with self._change:
                self._ended = True
                self._change.notify_all()

    def _put(self, block: Block) -> bool:
        with self._change:
            self._change.wait_for(lambda: self._stopped or len(self._ready) < self._depth)
            if self._stopped:
                return False
            self._ready.append(block)
            self._peak_depth = max(self._peak_depth, len(self._ready))
            self._change.notify_all()
            return True
