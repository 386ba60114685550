"""Delivery of tapped values from the device to queues and listeners, in order.

device          |call 0   |call 1   |call 2   |
our thread                |0 ->     |1 ->     |2 ->     queue.receive, listener.statistics
training loop   dispatches calls; waits only while MAX_PENDING results, or the results of
                MAX_PENDING_BYTES, are outstanding
"""

import threading
import time
from collections import deque
from collections.abc import Hashable, Iterable
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from millrace.base.activities import Activities
from millrace.base.pytrees import ArrayTree
from millrace.base.records.tensors import StatisticsBlock, TensorRows
from millrace.programs.taps.entries import CallResult, Taps, has_one_entry
from millrace.programs.taps.taps import Tapped
from millrace.programs.taps.tensors import Rows

MAX_PENDING = 16  # results that are dispatched and not delivered
# Of their taps. A result that has more is waited for, and then it is the only one.
MAX_PENDING_BYTES = 2**26
LONG_SECONDS = 5.0  # between two results: too long to be the time of steps alone


class TapListener(Protocol):
    """A receiver of the statistics of tensors."""

    def statistics(self, block: StatisticsBlock) -> None:
        """Receives the next block. Must not wait for anything."""
        ...


class Delivery:
    """A thread that waits for results. It starts with the first one and ends with `close`."""

    def __init__(self) -> None:
        self.listeners: list[TapListener] = []
        self.takes_queues = True  # False delivers statistics only
        self.seconds_per_step = 0.0  # a moving average of arrival times
        self._results: deque[_PendingResult] = deque()
        self._bytes = 0  # of the taps of these results
        self._change = threading.Condition()
        self._thread: threading.Thread | None = None
        self._stopped = False
        self._error: BaseException | None = None
        self._arrived = 0.0  # time of the last arrival
        self.activities: Activities | None = None  # gets the times of deliveries, if wanted

    def deliver(self, results: Iterable[CallResult], replicas: int) -> None:
        """Hands results over, in the order in which their calls were dispatched.

        Raises:
            Exception: the error that the delivery of an earlier result raised.
        """
        for result in results:
            for queue in self._queues_of(result):
                queue.expect()
            pending = _PendingResult(result, replicas, _bytes_of(result.taps))
            with self._change:
                self._change.wait_for(
                    lambda nbytes=pending.nbytes: (
                        self._has_room_for(nbytes) or self._error is not None
                    )
                )
                self._results.append(pending)
                self._bytes += pending.nbytes
                self._change.notify_all()
            del result, pending  # this thread does not wait for the next with these in hand
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="millrace-outfeed", daemon=True
                )
                self._thread.start()
        self._raise_error()

    def _has_room_for(self, nbytes: int) -> bool:
        waiting = len(self._results)
        return not waiting or (waiting < MAX_PENDING and self._bytes + nbytes <= MAX_PENDING_BYTES)

    def flush(self) -> None:
        """Waits until all results handed over have been delivered."""
        with self._change:
            self._change.wait_for(lambda: not self._results or self._error is not None)
        self._raise_error()

    def close(self) -> None:
        """Delivers the remaining results and ends the thread."""
        if self._thread is not None:
            with self._change:
                self._stopped = True
                self._change.notify_all()
            self._thread.join()
            self._thread, self._stopped = None, False
        self._raise_error()

    def _run(self) -> None:
        while True:
            with self._change:
                self._change.wait_for(lambda: self._results or self._stopped)
                if not self._results:
                    return
                result, replicas, nbytes = self._results[0]
            try:
                self._distribute(result, replicas)
            except BaseException as error:  # of any kind: raised again in the owner's thread
                self._error = self._error or error
            del result
            with self._change:
                self._results.popleft()
                self._bytes -= nbytes
                self._change.notify_all()

    def _distribute(self, result: CallResult, replicas: int) -> None:
        """Waits for a result, and gives its values to queues and listeners."""
        queues = self._queues_of(result)
        try:
            # On CPU these are views of memory that no program writes to again.
            steps: Tapped = jax.tree.map(_on_host, result.taps.steps)
            updates: Tapped = jax.tree.map(_on_host, result.taps.updates)
            self._measure(result.steps)
        except BaseException as error:
            for queue in queues:
                queue.fail(error)
            raise
        end = result.first + result.steps
        rounds = slice(result.first // replicas, -(-end // replicas))
        for key, value in steps.items():
            if key in queues:
                key.receive(_part(key, value, rounds), rounds.stop - rounds.start)
        for key, value in updates.items():
            if key in queues:
                key.receive(_part(key, value, slice(0, result.updates)), result.updates)
        if self.listeners:
            block = StatisticsBlock(
                steps=result.steps,
                updates=result.updates,
                of_steps=_rows(steps, result.first, result.steps, replicas),
                of_updates=_rows(updates, 0, result.updates, 1),
            )
            for listener in tuple(self.listeners):
                listener.statistics(block)
        if self.activities is not None:
            now = time.perf_counter()
            self.activities.add("outfeed", f"taps of {result.steps} steps", self._arrived, now)

    def _queues_of(self, result: CallResult) -> list[Any]:
        return queues_of(result.taps) if self.takes_queues else []

    def _measure(self, steps: int) -> None:
        now = time.perf_counter()
        spent, self._arrived = now - self._arrived, now
        if spent < LONG_SECONDS:
            per_step = spent / steps
            seen = self.seconds_per_step
            self.seconds_per_step = 0.8 * seen + 0.2 * per_step if seen else per_step

    def _raise_error(self) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            raise error


class _PendingResult(NamedTuple):
    """A result that has not been delivered."""

    result: CallResult
    replicas: int
    nbytes: int


def _bytes_of(taps: Taps) -> int:
    return sum(leaf.nbytes for leaf in jax.tree.leaves((taps.steps, taps.updates)))


def _part(key: Hashable, value: ArrayTree, part: slice) -> Any:
    """Returns some entries of a key, `[entries, ...]`; of one that has only the newest, that one.

    A view holds all of its array, so the entries of a call that has used few are copied.
    """
    if has_one_entry(key):
        return value

    def of_leaf(leaf: np.ndarray) -> np.ndarray:
        entries = leaf[part]
        return entries if len(entries) == len(leaf) else entries.copy()

    return jax.tree.map(of_leaf, value)


def queues_of(taps: Taps) -> list[Any]:
    """Returns the queues among the keys of taps; one that occurs twice is there twice."""
    return [key for t in (taps.steps, taps.updates) for key in t.keys if not isinstance(key, Rows)]


def _rows(tapped: Tapped, first: int, number: int, replicas: int) -> TensorRows | None:
    """Returns the statistics of `number` entries from `first` on; of replicas, in round order."""
    rows = [(key, value) for key, value in tapped.items() if isinstance(key, Rows)]
    if not rows or not number:
        return None
    arrays = []
    for _, value in rows:
        flat = value.reshape(-1, *value.shape[-2:]) if replicas > 1 else value
        arrays.append(flat[first : first + number])
    tensors = tuple(tensor for key, _ in rows for tensor in key.tensors)
    return TensorRows(tensors, np.concatenate(arrays, axis=1))


def _on_host(leaf: jax.Array) -> np.ndarray:
    whole = leaf if leaf.is_fully_addressable else leaf.addressable_data(0)
    return np.asarray(whole)
