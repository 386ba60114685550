"""Moves of arrays between two processes of one machine, through memory that both see.

    process 0   F0 ─> send ─┐                 B0 <─ arrived
                            └─ outbox: copied once F0 has been computed
    process 1                  F0 <─ arrived  B0 ─> send ...

No thread moves anything. What this process sends waits in its outbox until it is computed; what is
sent to it waits in the ring of the sender. This process copies whenever it comes by: after each
task, and when it must wait for something. It waits for its own device first, as others may be
waiting for the results, and then for the other processes.

Two pinned processes, 128 KiB, after a task that has trashed the caches: the copy and the socket
take about 0.17 ms of each process for a message.
"""

import functools
import select
import time
from collections import deque

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding

from millrace._compat.jax_arrays import DeviceCopies, are_ready
from millrace.errors import ProcessError
from millrace.pipelines.programs.split import Arrays
from millrace.pipelines.runtime.arriving import MaybeArriving, Specs, arriving
from millrace.processes.local_channel import (
    LocalChannel,
    MessageLayout,
    Outgoing,
    aligned,
    local_channel,
)

_LAYOUTS = 64  # that a link keeps


class _PendingMessage:
    """A message in the outbox."""

    __slots__ = ("arrays", "connection", "layout", "message")

    def __init__(self, connection: LocalChannel, layout: MessageLayout, arrays: Arrays):
        self.connection, self.layout, self.arrays = connection, layout, arrays
        self.message: Outgoing | None = None

    def send(self) -> bool:
        """Copies the arrays, which have been computed, as far as there is memory."""
        if self.message is None:
            addresses = [array.unsafe_buffer_pointer() for array in self.arrays]
            self.message = Outgoing(self.layout, addresses)
        return self.connection.send(self.message)


class _ExpectedMessage:
    """A message that this process will get."""

    def __init__(self, specs: Specs, copies: DeviceCopies):
        self._specs, self._copies = specs, copies
        self.arrays: Arrays | None = None  # once it has been taken
        self.number = len(specs)
        self.is_empty = not any(spec.size for spec in specs)  # no message is sent for it

    def fill(self, data: np.ndarray | None) -> None:
        """Makes the arrays, which take over the memory of the message."""
        self.arrays, begin = [], 0
        for spec in self._specs:
            if data is None or not spec.size:
                array = np.zeros(spec.shape, spec.dtype)
            else:
                end = begin + spec.size * spec.dtype.itemsize
                array = data[begin:end].view(spec.dtype).reshape(spec.shape)
                begin += aligned(end - begin)
            self.arrays.append(self._copies.from_host(array))


class Neighbors:
    """The other processes of the run that are on this machine. One for a process: `neighbors()`."""

    def __init__(self) -> None:
        self._connections: dict[int, LocalChannel | None] = {}
        self._outbox: deque[_PendingMessage] = deque()
        # By channel, in the order in which moves have begun, which is that of the messages.
        self._expected: dict[int, deque[_ExpectedMessage]] = {}
        self._poll = select.poll()
        self._by_fd: dict[int, LocalChannel] = {}
        self._indices = {device: index for index, device in enumerate(jax.devices())}
        # Seconds of this thread so far.
        self.own_work = 0.0  # waiting for the devices of this process
        self.transfer = 0.0  # copies, and calls of the socket
        self.waiting: dict[int, float] = {}  # for other processes, by their number

    def channel(self, source: jax.Device, target: jax.Device) -> int:
        """Returns the number of the channel from one device to another."""
        return self._indices[source] * len(self._indices) + self._indices[target]

    def connect(self, process: int) -> LocalChannel | None:
        """Returns the connection to a process; None if it is on another machine.

        The first time, both processes wait for each other.

        Raises:
            ProcessError: if the other one does not come in time.
        """
        if process not in self._connections:
            connection = self._connections[process] = local_channel(process)
            if connection is not None:
                self._by_fd[connection.socket.fileno()] = connection
                self._poll.register(connection.socket, select.POLLIN)
        return self._connections[process]

    def are_all_near(self) -> bool:
        """Whether all processes that this one has connected to are on its machine."""
        return bool(self._connections) and None not in self._connections.values()

    def send(self, process: int, layout: MessageLayout, arrays: Arrays) -> None:
        """Puts arrays into the outbox, also while they are being computed."""
        self._outbox.append(_PendingMessage(self._near(process), layout, arrays))

    def expect(self, process: int, channel: int, expected: _ExpectedMessage) -> list[MaybeArriving]:
        """Returns the arrays of the next message of a channel, and does not wait for them."""
        self._expected.setdefault(channel, deque()).append(expected)
        receive = functools.partial(self._receive, process, channel, expected)
        return arriving(receive, expected.number)

    def send_computed(self) -> None:
        """Sends what has been computed, and waits for nothing."""
        while self._outbox and are_ready(self._outbox[0].arrays):
            if not self._send_first():
                return

    def send_all(self, but: int = 0) -> None:
        """Sends what is in the outbox, except for some, and waits for it to be computed.

        Args:
            but: most messages that may be left.

        Raises:
            ProcessError: if a receiver has gone.
        """
        while len(self._outbox) > but:
            if not self._send_computed_first():
                self._wait(self._outbox[0].connection.process)

    def forget(self) -> None:
        """Empties the outbox, where a training has been interrupted."""
        self._outbox.clear()

    def leave(self) -> None:
        """Closes the connections after an update has failed: others would wait for its results.

        Their waits end with an error. Processes that go on connect again.
        """
        self._outbox.clear()
        self._expected.clear()
        for connection in self._by_fd.values():
            self._poll.unregister(connection.socket)
            connection.close()
            del self._connections[connection.process]
        self._by_fd.clear()

    def _receive(self, process: int, channel: int, expected: _ExpectedMessage) -> Arrays:
        while expected.arrays is None:
            first = self._expected[channel].popleft()
            first.fill(None if first.is_empty else self._next(process, channel))
        return expected.arrays

    def _next(self, process: int, channel: int) -> np.ndarray:
        """Returns the next message of a channel, after waiting for it."""
        connection = self._near(process)
        if (message := connection.take(channel)) is None:
            self._read(connection, channel)
            while (message := connection.take(channel)) is None:
                # Others may wait for what this process has computed.
                if not (self._outbox and self._send_computed_first()):
                    self._wait(process, channel)
                else:
                    self._read(connection, channel)
        return message

    def _near(self, process: int) -> LocalChannel:
        """Returns the connection to a process of this machine, anew if one has left it."""
        connection = self._connections.get(process) or self.connect(process)
        if connection is None:
            raise ProcessError(
                f"Process {process}, on this machine, could not be connected again after an "
                "error. Start the script again."
            )
        return connection

    def _send_computed_first(self) -> bool:
        """Waits for the first message to be computed, and returns whether it is sent."""
        begin = time.perf_counter()
        for array in self._outbox[0].arrays:  # with less Python than jax.block_until_ready
            array.block_until_ready()
        self.own_work += time.perf_counter() - begin
        return self._send_first()

    def _send_first(self) -> bool:
        begin = time.perf_counter()
        is_sent = self._outbox[0].send()
        self.transfer += time.perf_counter() - begin
        if is_sent:
            self._outbox.popleft()
        return is_sent

    def _read(self, connection: LocalChannel, channel: int | None = None) -> None:
        begin = time.perf_counter()
        connection.read(channel)
        self.transfer += time.perf_counter() - begin

    def _wait(self, process: int, channel: int | None = None) -> None:
        """Waits until another process has sent something, or has made room.

        Args:
            process: the one for which this one waits.
            channel: of the message for which it waits; None: it waits for room.
        """
        blocked = [each for each in self._by_fd.values() if each.is_blocked]
        for each in blocked:
            self._poll.modify(each.socket, select.POLLIN | select.POLLOUT)
        begin = time.perf_counter()
        found = self._poll.poll()
        seconds = time.perf_counter() - begin
        self.waiting[process] = self.waiting.get(process, 0.0) + seconds
        for each in blocked:
            self._poll.modify(each.socket, select.POLLIN)
        for fd, _ in found:
            connection = self._by_fd[fd]
            self._read(connection, channel if connection.process == process else None)


@functools.cache
def neighbors() -> Neighbors:
    """Returns the connections of this process to others on the machine."""
    return Neighbors()


class Local:
    """Sends through memory. Neither the sender nor the receiver waits before it has to."""

    def __init__(self, source: jax.Device, target: jax.Device, process: int):
        """Prepares the moves.

        Args:
            source: where arrays come from.
            target: where they go; one of the two belongs to this process.
            process: the other one, to which this one has connected.
        """
        self._neighbors, self._process = neighbors(), process
        self._channel = self._neighbors.channel(source, target)
        self._copies = None
        if target.process_index == jax.process_index():
            self._copies = DeviceCopies(SingleDeviceSharding(target), (0,))
        # By the identity of specs, which each caller of `move` keeps: the indices of arrays that
        # are not empty, and their layout.
        self._layouts: dict[int, tuple[Specs, list[int], MessageLayout]] = {}

    def move(self, arrays: Arrays | None, specs: Specs) -> list[MaybeArriving] | None:
        """Sends the arrays, or returns those that will arrive. Waits for nothing."""
        if self._copies is None:
            self._send(arrays or [], specs)
            return None
        expected = _ExpectedMessage(specs, self._copies)
        return self._neighbors.expect(self._process, self._channel, expected)

    def _send(self, arrays: Arrays, specs: Specs) -> None:
        kept = self._layouts.get(id(specs))
        if kept is None:
            if len(self._layouts) > _LAYOUTS:  # of specs that are made anew for each move
                self._layouts.clear()
            indices = [index for index, spec in enumerate(specs) if spec.size]
            sizes = [specs[index].size * specs[index].dtype.itemsize for index in indices]
            kept = self._layouts[id(specs)] = specs, indices, MessageLayout(self._channel, sizes)
        _, indices, layout = kept
        if indices:
            full = arrays if len(indices) == len(arrays) else [arrays[k] for k in indices]
            self._neighbors.send(self._process, layout, full)
