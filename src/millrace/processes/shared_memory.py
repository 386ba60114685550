"""Sums over the processes of a run on one machine, through memory that they share.

    process 0   writes  [slot 0 | slot 1]  <- reads   process 1
    process 1   writes  [slot 0 | slot 1]  <- reads   process 0

Each process owns memory without a file (`memfd_create`), which the others map, and has a socket to
each of them. For a sum it writes its values into a slot and tells the others; once they have told
it, it adds up the slots, in the order of the processes: all get the same bits. Sums alternate
between the slots: a process that has come to a sum has read those of the sum before the last.

The kernel frees the memory with the last process, and closes the sockets of one that dies, which
ends the wait of the others.
"""

import contextlib
import functools
import mmap
import os
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from millrace._compat.jax_processes import key_value_store
from millrace.errors import ProcessError
from millrace.processes.agreement import Member
from millrace.processes.local_connection import connect_locally

_SLOT = 1 << 36  # bytes of a slot, of which only those that are written take memory
_ALIGNED = 64  # bytes
_SMALLEST = 1 << 20  # bytes that are mapped at once
_MESSAGE = struct.Struct("=QQ")  # number of the sum, its bytes
# Seconds in which a process asks again and again: a sum of 100 KB took 109 us, and 132 with
# a thread that has to wake up.
_POLL_SECONDS = 1e-4
_SECONDS = 300  # for the others to connect
_KEY = "millrace/memory/complete"
_KEPT = 256  # updates whose times are kept

# Of each slot: of each process: its values.
_Slots: TypeAlias = list[list[list[np.ndarray]]]


@dataclass(frozen=True, slots=True)
class SumTimes:
    """Seconds between two updates of this process."""

    own_seconds: float  # in which it computed
    sum_seconds: float  # in which it copied, waited for the others and added up


class SharedMemory:
    """The memory of all processes of a run, in one of them."""

    def __init__(self, members: Sequence[Member], index: int, sockets: "Sockets", files: list[int]):
        """Takes the ends of the connections.

        Args:
            members: the processes.
            index: number of this one.
            sockets: to each of the others.
            files: descriptors of the memory of each process.
        """
        self._members, self._index = members, index
        self._sockets, self._files = sockets, files
        self._lock = threading.Lock()
        self._count = 0
        self._mapped: list[list[mmap.mmap]] = []  # of each process: its slots
        self._layouts: dict[tuple[tuple[np.dtype, int], ...], tuple[int, _Slots]] = {}
        self._times: deque[SumTimes] = deque(maxlen=_KEPT)
        self._end: float | None = None  # of the sum before
        self._own = self._sum = 0.0  # seconds since the last update
        # A forked child would keep the connections open after the death of its parent.
        os.register_at_fork(after_in_child=self.close)

    def add_up(
        self, values: Sequence[np.ndarray], results: Sequence[np.ndarray], ends_update: bool
    ) -> None:
        """Adds up values over all processes, each of which calls this.

        Args:
            values: flat arrays of this process.
            results: the sums are written to these, which may have the memory of `values`.
            ends_update: whether these are gradients, whose times are kept.

        Raises:
            ProcessError: if another process has gone, or comes with other values.
        """
        with self._lock:
            begin = time.perf_counter()
            nbytes, slots = self._layout(values)
            slot = slots[self._count % 2]
            for view, value in zip(slot[self._index], values, strict=True):
                np.copyto(view, value)
            self._meet(nbytes)
            for k, result in enumerate(results):
                parts = [views[k] for views in slot]
                if self._index < 2:  # nearer than the copy, and not overwritten before it is read
                    parts[self._index] = values[k]
                np.add(parts[0], parts[1], out=result)
                for part in parts[2:]:
                    np.add(result, part, out=result)
            self._note(begin, ends_update)

    def take_times(self) -> list[SumTimes]:
        """Returns the times of the latest updates, and forgets them."""
        with self._lock:
            times = list(self._times)
            self._times.clear()
            self._end = None  # the next update begins after a pause
            return times

    def close(self) -> None:
        """Closes the connections; the others' waits end."""
        for each in self._sockets.values():
            each.close()

    def _note(self, begin: float, ends_update: bool) -> None:
        end = time.perf_counter()
        if self._end is not None:
            self._own += begin - self._end
            self._sum += end - begin
        if ends_update:
            if self._end is not None:
                self._times.append(SumTimes(self._own, self._sum))
            self._own = self._sum = 0.0
        if ends_update or self._end is not None:
            self._end = end

    def _meet(self, nbytes: int) -> None:
        """Tells the others that this process has written its values, and waits for theirs."""
        mine = _MESSAGE.pack(self._count, nbytes)
        self._count += 1
        for other, connected in self._sockets.items():
            self._of_other(other, functools.partial(connected.sendall, mine))
        for other, connected in self._sockets.items():
            theirs = self._of_other(other, functools.partial(_receive, connected))
            if theirs != mine:
                raise ProcessError(
                    f"{self._members[other]} adds up {_described(theirs)}, and "
                    f"{self._members[self._index]} adds up {_described(mine)}. Run the same script "
                    "with the same arguments in every process."
                )

    def _of_other(self, other: int, call: functools.partial[bytes | None]) -> bytes:
        try:
            answer = call()
        except OSError as error:
            raise self._gone(other) from error
        if answer == b"":
            raise self._gone(other)
        return answer or b""

    def _gone(self, other: int) -> ProcessError:
        return ProcessError(
            f"{self._members[other]} ended while {self._members[self._index]} waited for its "
            "gradients. Look at its output."
        )

    def _layout(self, values: Sequence[np.ndarray]) -> tuple[int, _Slots]:
        """Returns the bytes of values, and the views of them in all slots."""
        key = tuple((value.dtype, value.size) for value in values)
        if key not in self._layouts:
            begins, size = list[int](), 0
            for value in values:
                begins.append(size)
                size += -(-value.nbytes // _ALIGNED) * _ALIGNED
            self._map(size)
            slots: _Slots = [
                [
                    [
                        np.frombuffer(memories[slot], value.dtype, value.size, begin)
                        for value, begin in zip(values, begins, strict=True)
                    ]
                    for memories in self._mapped
                ]
                for slot in range(2)
            ]
            self._layouts[key] = (size, slots)
        return self._layouts[key]

    def _map(self, size: int) -> None:
        """Maps the memory of all processes, where less than `size` bytes are mapped."""
        if self._mapped and len(self._mapped[0][0]) >= size:
            return
        self._layouts.clear()
        size = max(1 << (size - 1).bit_length(), _SMALLEST) if size else _SMALLEST
        self._mapped = [
            [mmap.mmap(file, size, offset=slot * _SLOT) for slot in range(2)]
            for file in self._files
        ]


def _receive(connected: socket.socket) -> bytes:
    """Waits for a message, of which nothing is left where the other side has gone."""
    end = time.perf_counter() + _POLL_SECONDS
    while time.perf_counter() < end:
        with contextlib.suppress(BlockingIOError):
            if early := connected.recv(_MESSAGE.size, socket.MSG_DONTWAIT):
                return early
            break
        os.sched_yield()
    return connected.recv(_MESSAGE.size, socket.MSG_WAITALL)


def _described(message: bytes) -> str:
    if len(message) < _MESSAGE.size:
        return "nothing"
    number, nbytes = _MESSAGE.unpack(message)
    return f"{nbytes} bytes in sum {number}"


Sockets: TypeAlias = dict[int, socket.socket]  # by the number of the other process


def shared_memory() -> SharedMemory | None:
    """Returns the memory that all processes of the run share; None if they do not share any."""
    return _shared


def share_memory(members: Sequence[Member], index: int) -> None:
    """Connects the processes of a run through memory, if all are on one machine. All call this.

    Args:
        members: the processes of the run.
        index: number of this one.

    Raises:
        ProcessError: if another process does not come in time.
    """
    global _shared
    if len({member.host for member in members}) > 1:
        return
    file = _memory()
    connected = Sockets()
    # In the order of all pairs, so that no process waits for one that waits for another.
    for other in range(len(members)):
        if other != index:
            found = connect_locally(other, "memory", file is not None)
            if found is not None:
                connected[other] = found
    is_complete = file is not None and len(connected) == len(members) - 1
    is_complete = _all_say(is_complete, len(members), index)
    if file is not None and is_complete:
        files = {index: file, **_exchange(connected, file)}
        ordered = [files[process] for process in range(len(members))]
        _shared = SharedMemory(members, index, connected, ordered)
        return
    for each in connected.values():
        each.close()
    if file is not None:
        os.close(file)


def _all_say(is_complete: bool, count: int, index: int) -> bool:
    """Returns whether all processes are connected with all others: two alone may not be."""
    store = key_value_store()
    store.key_value_set(f"{_KEY}/{index}", str(is_complete))
    texts = [store.blocking_key_value_get(f"{_KEY}/{k}", 1000 * _SECONDS) for k in range(count)]
    return "False" not in texts


def _exchange(connected: Sockets, file: int) -> dict[int, int]:
    """Passes a descriptor to all others, and returns theirs."""
    for each in connected.values():
        each.settimeout(None)
        socket.send_fds(each, [b"."], [file])
    return {other: socket.recv_fds(each, 1, 1)[1][0] for other, each in connected.items()}


def _memory() -> int | None:
    """Returns the descriptor of new memory; None on a system without it."""
    with contextlib.suppress(OSError, AttributeError):
        file = os.memfd_create("millrace")
        os.ftruncate(file, 2 * _SLOT)
        return file
    return None


_shared: SharedMemory | None = None
