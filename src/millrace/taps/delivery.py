"""Brings what taps carried out from the device to those who wait for it, in order.

device          |part 0   |part 1   |part 2   |
our thread                |0 ->     |1 ->     |2 ->     queue.receive, listener.statistics
training loop   dispatches parts; waits only while MAX_PENDING of them are not finished
"""

import threading
import time
from collections import deque
from collections.abc import Iterable
from typing import Any, Protocol

import jax
import numpy as np

from millrace.records.tensors import StatisticsBlock, TensorRows
from millrace.taps.entries import Taps
from millrace.taps.taps import Tapped
from millrace.taps.tensors import Rows

MAX_PENDING = 16  # parts whose memory on the device is still held
LONG_SECONDS = 5.0  # between two parts: something else went on, and tells nothing of a step


class Listener(Protocol):
    """Somebody who wants the statistics of tensors."""

    def statistics(self, block: StatisticsBlock) -> None:
        """Takes in the next block. Must not wait for anything."""
        ...


class Delivery:
    """A thread that waits for parts. It starts with the first one and ends with `close`."""

    def __init__(self) -> None:
        self.listeners: list[Listener] = []
        self.takes_queues = True  # or statistics only
        self.seconds_per_step = 0.0  # as parts arrived
        self._parts: deque[tuple[Any, int]] = deque()
        self._change = threading.Condition()
        self._thread: threading.Thread | None = None
        self._stopped = False
        self._error: BaseException | None = None
        self._arrived = 0.0  # when the part before did

    def deliver(self, parts: Iterable[Any], replicas: int) -> None:
        """Hands parts over, in the order in which they were dispatched.

        Raises:
            Exception: what bringing an earlier part has raised.
        """
        for part in parts:
            for queue in self._queues_of(part):
                queue.expect()
            with self._change:
                self._change.wait_for(
                    lambda: len(self._parts) < MAX_PENDING or self._error is not None
                )
                self._parts.append((part, replicas))
                self._change.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="millrace-outfeed", daemon=True
                )
                self._thread.start()
        self._raise_error()

    def flush(self) -> None:
        """Waits until everything handed over has been delivered."""
        with self._change:
            self._change.wait_for(lambda: not self._parts or self._error is not None)
        self._raise_error()

    def close(self) -> None:
        """Delivers what is left and ends the thread."""
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
                self._change.wait_for(lambda: self._parts or self._stopped)
                if not self._parts:
                    return
                part, replicas = self._parts[0]
            try:
                self._bring(part, replicas)
            except BaseException as error:  # handed over to the owner, whatever it is
                self._error = self._error or error
            with self._change:
                self._parts.popleft()
                self._change.notify_all()

    def _bring(self, part: Any, replicas: int) -> None:
        queues = self._queues_of(part)
        try:
            # On CPU these are views of memory that no program writes to again.
            steps = _fetched(part.taps.steps)
            updates = _fetched(part.taps.updates)
            self._measure(part.steps)
        except BaseException as error:
            for queue in queues:
                queue.fail(error)
            raise
        rounds = slice(part.first // replicas, -(-(part.first + part.steps) // replicas))
        for key, value in steps.items():
            if key in queues:
                entries = jax.tree.map(lambda leaf: leaf[rounds], value)
                key.receive(entries, rounds.stop - rounds.start)
        for key, value in updates.items():
            if key in queues:
                key.receive(jax.tree.map(lambda leaf: leaf[: part.updates], value), part.updates)
        if self.listeners:
            block = StatisticsBlock(
                steps=part.steps,
                updates=part.updates,
                of_steps=_rows(steps, part.first, part.steps, replicas),
                of_updates=_rows(updates, 0, part.updates, 1),
            )
            for listener in tuple(self.listeners):
                listener.statistics(block)

    def _queues_of(self, part: Any) -> list[Any]:
        return queues_of(part.taps) if self.takes_queues else []

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


def queues_of(taps: Taps) -> list[Any]:
    """Returns the queues among the keys of taps, one for each time that it takes values."""
    return [key for t in (taps.steps, taps.updates) for key in t.keys if not isinstance(key, Rows)]


def _fetched(tapped: Tapped) -> Tapped:
    return jax.tree.map(_on_host, tapped)


def _rows(tapped: Tapped, first: int, number: int, replicas: int) -> TensorRows | None:
    """Returns the statistics of `number` entries; `[rounds, replicas, ...]` are so many rounds."""
    found = [(key, value) for key, value in tapped.items() if isinstance(key, Rows)]
    if not found or not number:
        return None
    arrays = []
    for _, value in found:
        flat = value.reshape(-1, *value.shape[-2:]) if replicas > 1 else value
        arrays.append(flat[first : first + number])
    tensors = tuple(tensor for key, _ in found for tensor in key.tensors)
    return TensorRows(tensors, np.concatenate(arrays, axis=1))


def _on_host(leaf: jax.Array) -> np.ndarray:
    whole = leaf if leaf.is_fully_addressable else leaf.addressable_data(0)
    return np.asarray(whole)
