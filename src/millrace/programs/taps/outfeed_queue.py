"""A queue out of a compiled program: every iteration of its loop leaves an element.

    in the program    queue.enqueue({"loss": loss, "norm": norm})        one per iteration
    on the host       queue.dequeue()  ->  {"loss": [E], "norm": [E]}    all since the last time
                      for element in queue: ...                          also while it runs

Elements arrive whether or not somebody reads them, and nothing waits for a reader. Elements that
nobody reads are kept up to `max_bytes`; then the oldest are dropped, with a warning.
"""

import logging
import threading
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import jax
import numpy as np

from millrace._compat.keras_graph import is_symbolic
from millrace.base.options import QueueMode, member, whole_number
from millrace.base.pytrees import ArrayTree
from millrace.errors import QueueError
from millrace.programs.taps.element_blocks import BLOCK_BYTES, ElementBlock
from millrace.programs.taps.structure import ordered, plain
from millrace.programs.taps.taps import tap

logger = logging.getLogger("millrace")

GIB = 2**30
_BLOCKS = 16  # within `max_bytes`: so a queue that drops its oldest keeps most of it


class OutfeedQueue:
    """Carries values out of the loop of a compiled program.

    Args:
        mode: `"all"` keeps every element, `"last"` only the newest.
        max_bytes: limit for elements that nobody has read; beyond it the oldest are dropped.

    Raises:
        OptionError: for an unknown mode, or a limit below 1.
    """

    def __init__(self, mode: Literal["all", "last"] | QueueMode = "all", *, max_bytes: int = GIB):
        self._mode = member(QueueMode, "mode", mode)
        self._max_bytes = whole_number("max_bytes", max_bytes, 1)
        self._blocks: deque[ElementBlock] = deque()
        self._bytes = 0
        self._used = 0  # elements of the first block that were read one by one
        self._empty: Any = None  # like an element, [0, ...]
        self._change = threading.Condition()
        self._expected = 0  # results still to arrive
        self._producer: int | None = None  # id of the thread that runs the program
        self._error: BaseException | None = None
        self._raised_in: int | None = None  # id of the thread that has got the error already
        self._warned = False
        self._enqueued = False
        self.dropped: int = 0  # elements that were not kept
        _queues.add(self)

    def enqueue(self, value: ArrayTree) -> None:
        """Carries `value` out of the program that is being traced, once per iteration.

        Args:
            value: an array, or a tree of arrays: tuples, lists and dicts come out as they went in.

        Raises:
            TapError: at the second call in one program, or outside of a program that a strategy
                runs.
        """
        if is_symbolic():  # a layer is being built by a call with shapes only
            return
        tree = ordered(value)
        tap(self, jax.tree.map(jax.numpy.asarray, tree))
        self.mark_enqueued()

    def mark_enqueued(self) -> None:
        """Records that a program that is being traced enqueues."""
        self._enqueued = True

    @property
    def enqueued(self) -> bool:
        """Whether a program that enqueues has been traced."""
        return self._enqueued

    @property
    def mode(self) -> QueueMode:
        """The elements that are kept: all, or the newest."""
        return self._mode

    def __repr__(self) -> str:
        return f"<OutfeedQueue mode={self._mode.value!r} at {id(self):#x}>"

    def dequeue(self, wait_for_completion: bool = False) -> Any:
        """Returns all elements that have arrived since the last call, and removes them.

        In the thread that runs the program it waits for the program to finish; in other threads it
        does not wait.

        Args:
            wait_for_completion: waits in any thread.

        Returns:
            NumPy arrays in the structure that was enqueued: `[elements, ...]`, with several
            replicas `[elements, replicas, ...]`; in mode `"last"` without the first axis. An
            empty list if no program enqueues.

        Raises:
            QueueError: in mode `"last"`, if nothing has arrived yet.
        """
        with self._change:
            if wait_for_completion or self._producer == threading.get_ident():
                self._change.wait_for(lambda: not self._expected or self._error is not None)
            self._raise_error()
            if self._mode is QueueMode.LAST:
                return self._newest()
            values = [
                jax.tree.map(lambda leaf, begin=begin: leaf[begin:], block.value)
                for block, begin in self._not_read()
            ]
            self._clear()
        if not values:
            return [] if self._empty is None else plain(self._empty)
        return plain(_concatenated(values))

    def __iter__(self) -> Iterator[Any]:
        """Yields the elements that have arrived, one by one, until none is left.

        Raises:
            QueueError: in mode `"last"`, which cannot be iterated.
        """
        if self._mode is QueueMode.LAST:
            raise QueueError(
                "An outfeed queue in mode 'last' keeps one element and cannot be iterated. Call "
                "dequeue(), or set mode='all'."
            )
        return self._elements()

    def _elements(self) -> Iterator[Any]:
        while True:
            with self._change:
                self._raise_error()
                if not self._blocks:
                    return
                block, index = self._blocks[0], self._used
                self._used += 1
                if self._used == block.elements:
                    self._blocks.popleft()
                    self._bytes -= block.nbytes
                    self._used = 0
            yield plain(jax.tree.map(lambda leaf: leaf[index], block.value))  # noqa: B023

    def expect(self) -> None:
        """Announces that a result will arrive; called in the thread that runs the program."""
        with self._change:
            self._expected += 1
            self._producer = threading.get_ident()
            if self._raised_in is not None:  # an error of an earlier run
                self._error = self._raised_in = None

    def receive(self, value: Any, elements: int) -> None:
        """Adds elements from a tree of NumPy arrays, `[elements, ...]`. Never waits."""
        nbytes = sum(leaf.nbytes for leaf in jax.tree.leaves(value))
        with self._change:
            self._expected -= 1
            if elements:
                if self._mode is QueueMode.LAST:
                    self._clear()
                    value = jax.tree.map(lambda leaf: leaf[-1:].copy(), value)
                    nbytes, elements = 0, 1
                self._empty = jax.tree.map(lambda leaf: leaf[:0].copy(), value)
                if not (self._blocks and self._blocks[-1].add(value, elements, nbytes)):
                    most = min(BLOCK_BYTES, self._max_bytes // _BLOCKS)
                    self._blocks.append(ElementBlock(value, elements, nbytes, most))
                self._bytes += nbytes
                self._drop_old()
            self._change.notify_all()

    def fail(self, error: BaseException) -> None:
        """Records that an announced result will not arrive; the next read raises `error`."""
        with self._change:
            self._expected -= 1
            self._error = error
            self._change.notify_all()

    @contextmanager
    def filled(self) -> Iterator[None]:
        """Surrounds a run that fills the queue, in the thread of the run.

        The next read in another thread raises an error of the run, too, so that nobody waits for
        elements that will not come.
        """
        self.expect()
        try:
            yield
        except BaseException as error:
            with self._change:
                by_user = QueueError(f"The program that fills {self!r} was ended by Ctrl-C.")
                self.fail(error if isinstance(error, Exception) else by_user)
                self._raised_in = threading.get_ident()
            raise
        with self._change:
            self._expected -= 1
            self._change.notify_all()

    def unread(self) -> list[Any]:
        """Waits for the running program, and returns copies of all elements without removing them.

        Returns:
            Trees of NumPy arrays, `[elements, ...]`, that `put_back` takes.

        Raises:
            Exception: of a program that has failed.
        """
        with self._change:
            self._change.wait_for(lambda: not self._expected or self._error is not None)
            self._raise_error()
            return [
                plain(jax.tree.map(lambda leaf, begin=begin: np.array(leaf[begin:]), block.value))
                for block, begin in self._not_read()
            ]

    def put_back(self, values: Sequence[Any]) -> None:
        """Replaces all elements by those that `unread` has returned, here or elsewhere."""
        self.clear()
        for value in values:
            with self._change:
                self._expected += 1
            self.receive(ordered(value), len(jax.tree.leaves(value)[0]))

    def clear(self) -> None:
        """Removes all elements."""
        with self._change:
            self._clear()

    def _not_read(self) -> Iterator[tuple[ElementBlock, int]]:
        """Yields the blocks, each with the index of its first element that was not read."""
        return zip(self._blocks, [self._used, *[0] * len(self._blocks)], strict=False)

    def _newest(self) -> Any:
        if not self._blocks:
            if not self._enqueued:
                return []
            raise QueueError(
                "Nothing has arrived in this outfeed queue yet, and mode 'last' has no empty "
                "value to give. Run a program that enqueues first."
            )
        return plain(jax.tree.map(lambda leaf: leaf[-1], self._blocks[-1].value))

    def _clear(self) -> None:
        self._blocks.clear()
        self._bytes = self._used = 0

    def _drop_old(self) -> None:
        while self._bytes > self._max_bytes and len(self._blocks) > 1:
            old = self._blocks.popleft()
            self._bytes -= old.nbytes
            self.dropped += old.elements - self._used
            self._used = 0
            if not self._warned:
                self._warned = True
                logger.warning(
                    "An outfeed queue holds max_bytes=%d bytes that nobody has dequeued, and now "
                    "drops its oldest elements. Dequeue more often, set mode='last', or set a "
                    "higher OutfeedQueue(max_bytes=...).",
                    self._max_bytes,
                )

    def _raise_error(self) -> None:
        if self._error is not None and self._raised_in != threading.get_ident():
            error, self._error, self._raised_in = self._error, None, None
            raise error


_queues: "weakref.WeakSet[OutfeedQueue]" = weakref.WeakSet()


def queues_with_elements() -> list[OutfeedQueue]:
    """Returns the queues of this process that have elements which nobody has read."""
    return [queue for queue in list(_queues) if queue._mode is QueueMode.ALL and queue._blocks]


def _concatenated(values: list[ArrayTree]) -> Any:
    if len(values) == 1:
        return values[0]
    trees = {jax.tree.structure(value) for value in values}
    shapes = {tuple(leaf.shape[1:] for leaf in jax.tree.leaves(value)) for value in values}
    if len(trees) > 1 or len(shapes) > 1:
        raise QueueError(
            "The elements in this outfeed queue have different structures or shapes, so they do "
            f"not fit into one array: {sorted(map(str, shapes))}. Iterate over the queue, or "
            "dequeue after each program; a smaller last batch goes with drop_remainder=True."
        )
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *values)
