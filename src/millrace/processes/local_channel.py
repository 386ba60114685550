"""Messages between two processes of one machine, through memory that both see.

    sender    copy into the ring  ── place and length ──>  copy out of the ring    receiver
                                  <── free again up to ──

The two are connected by a socket, which wakes the one that waits and tells it when the other has
died. Each has a ring of memory for what it sends. The ring has no name: its descriptor travels
over the socket. So nothing is left behind when processes are killed, and the size of /dev/shm does
not matter.

No call waits. `select` on the socket waits for messages, and for free memory.
"""

import ctypes
import mmap
import os
import socket
import struct
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from millrace.errors import ProcessError
from millrace.processes.local_connection import connect_locally

LEAST_BYTES, MOST_BYTES = 2**20, 2**26  # of a ring
SHARE = 4  # messages that a ring holds at least; longer ones are sent in pieces
ALIGNMENT = 64  # bytes; JAX takes over an aligned host array on CPU and copies any other


class _Kind:
    PIECE, LAST, FREE, MEMORY = range(4)


class _Note(NamedTuple):
    """One message of the socket."""

    kind: int
    ring: int  # number of the sender's ring, or in FREE of the receiver's
    channel: int
    nbytes: int  # of the whole message; in MEMORY of the ring
    at: int  # place in the message
    place: int  # in the ring
    length: int  # of the piece
    end: int  # bytes that the ring has taken, or given back, since it was made


_FRAME = struct.Struct("=BxHIQQQQQ")


class Ring:
    """Memory that can be passed to another process."""

    def __init__(self, fd: int, nbytes: int, number: int = 0):
        """Maps the memory of a descriptor; the rings of a sender are numbered."""
        self._map = mmap.mmap(fd, nbytes)
        self.fd, self.nbytes, self.number = fd, nbytes, number
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self.taken = self.free = 0  # bytes since it was made, with those left out at its end

    @classmethod
    def reserve(cls, nbytes: int) -> "Ring":
        """Returns new memory.

        Raises:
            OSError: if the system does not have it.
        """
        fd = os.memfd_create("millrace")
        try:
            # Otherwise a system without memory would kill the process that first writes to it.
            os.posix_fallocate(fd, 0, nbytes)
            return cls(fd, nbytes)
        except OSError:
            os.close(fd)
            raise

    def room_for(self, nbytes: int) -> tuple[int, int] | None:
        """Returns a place for bytes, and `taken` with them; None if there is none at present."""
        place = self.taken % self.nbytes
        skipped = self.nbytes - place if place + nbytes > self.nbytes else 0
        end = self.taken + skipped + nbytes
        return None if end - self.free > self.nbytes else ((place + skipped) % self.nbytes, end)


def aligned(nbytes: int) -> int:
    """Returns the bytes that a part takes in a message."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def local_channel(process: int) -> "LocalChannel | None":
    """Returns a channel to another process; None if it is not on this machine. Both call this.

    Raises:
        ProcessError: if the other process does not come in time.
    """
    try:
        ring = Ring.reserve(LEAST_BYTES)
    except (OSError, AttributeError):  # no memory, or a system without it
        ring = None
    connected = connect_locally(process, ring is not None)
    return None if connected is None or ring is None else LocalChannel(connected, ring, process)


class MessageLayout:
    """The places of the parts of messages that are all alike."""

    def __init__(self, channel: int, sizes: Sequence[int]):
        """Lays out messages.

        Args:
            channel: number of the channel; messages of one channel arrive in order.
            sizes: bytes of each part, none of which is empty.
        """
        self.channel, self.nbytes = channel, 0
        self.parts: list[tuple[int, int]] = []  # place and bytes
        for size in sizes:
            self.parts.append((self.nbytes, size))
            self.nbytes += aligned(size)


class Outgoing:
    """A message that is being sent, perhaps in pieces."""

    __slots__ = ("addresses", "layout", "part", "sent")

    def __init__(self, layout: MessageLayout, addresses: Sequence[int]):
        """Describes a message.

        Args:
            layout: of its parts.
            addresses: of its parts, whose memory must stay as it is until all is sent.
        """
        self.layout, self.addresses = layout, addresses
        self.part = self.sent = 0  # of a message in pieces: index of the next part, bytes of it


class LocalChannel:
    """The connection to one other process of this machine."""

    def __init__(self, connected: socket.socket, ring: Ring, process: int):
        """Takes over a connected socket, and passes the ring on.

        Args:
            connected: a socket that keeps the bounds of messages (SOCK_SEQPACKET).
            ring: for the messages of this process.
            process: number of the other one, for errors.
        """
        self.socket, self.process = connected, process
        connected.setblocking(False)
        self.is_blocked = False  # whether a frame waits until the socket takes more
        self.arrived: dict[int, deque[np.ndarray]] = {}  # messages, by channel
        self._incoming: dict[int, np.ndarray] = {}  # those of which pieces are missing
        self._theirs: Ring | None = None
        self._told = 0  # up to where they know that their ring is free
        self._rings = 0
        self._ring = ring
        self._can_grow = True
        self._pass_on()
        os.register_at_fork(after_in_child=self.close)  # or the parent's end would not show

    def close(self) -> None:
        """Closes the socket."""
        self.socket.close()

    def send(self, message: Outgoing) -> bool:
        """Sends as much as there is memory for, and returns whether all is sent.

        A task has trashed the caches of the core when its results are sent: each line of Python
        then takes about a microsecond, so there are few of them for a message that fits.

        Raises:
            ProcessError: if the other process has gone.
        """
        nbytes, has_begun = message.layout.nbytes, message.part or message.sent
        if nbytes * SHARE > self._ring.nbytes and not has_begun and self._can_grow:
            self._grow(nbytes)
        if nbytes * SHARE > self._ring.nbytes or has_begun:
            return self._send_pieces(message)
        ring = self._ring
        if (found := ring.room_for(nbytes)) is None:
            return False
        place, end = found
        begin = ring.address + place
        for (at, length), address in zip(message.layout.parts, message.addresses, strict=True):
            ctypes.memmove(begin + at, address, length)
        frame = (_Kind.LAST, ring.number, message.layout.channel, nbytes, 0, place, nbytes, end)
        if not self._say(frame):
            return False
        ring.taken = end
        return True

    def _send_pieces(self, message: Outgoing) -> bool:
        """Sends pieces of a message while there is memory; returns whether all is sent."""
        layout, ring = message.layout, self._ring
        while message.part < len(layout.parts):
            at, size = layout.parts[message.part]
            length = min(size - message.sent, ring.nbytes // SHARE)
            if (found := ring.room_for(aligned(length))) is None:
                return False
            place, end = found
            source = message.addresses[message.part] + message.sent
            ctypes.memmove(ring.address + place, source, length)
            ends_part = message.sent + length == size
            is_last = ends_part and message.part == len(layout.parts) - 1
            kind = _Kind.LAST if is_last else _Kind.PIECE
            where = (at + message.sent, place, length, end)
            if not self._say((kind, ring.number, layout.channel, layout.nbytes, *where)):
                return False
            ring.taken = end
            message.part += ends_part
            message.sent = 0 if ends_part else message.sent + length
        return True

    def read(self, channel: int | None = None) -> None:
        """Copies what has arrived out of the other process's ring.

        Args:
            channel: reads until a message of this one is complete; None: reads all.

        Raises:
            ProcessError: if the other process has gone.
        """
        while not (channel is not None and self.arrived.get(channel)):
            frame = self._receive()
            if frame is None:
                break
            if frame.kind == _Kind.LAST or frame.kind == _Kind.PIECE:
                self._copy_out(frame)
            elif frame.kind == _Kind.MEMORY:
                self._take_over(frame)
            elif frame.ring == self._ring.number:
                self._ring.free = frame.end
        theirs = self._theirs
        is_due = theirs is not None and (theirs.free - self._told) * 2 >= theirs.nbytes
        if theirs is not None and is_due:
            free = (_Kind.FREE, theirs.number, 0, 0, 0, 0, 0, theirs.free)
            self._told = theirs.free if self._say(free) else self._told

    def take(self, channel: int) -> np.ndarray | None:
        """Returns the next message of a channel, as bytes; None if it is not here as a whole."""
        messages = self.arrived.get(channel)
        return messages.popleft() if messages else None

    def _copy_out(self, frame: _Note) -> None:
        theirs, whole = self._theirs, self._incoming.get(frame.channel)
        if whole is None:
            memory = np.empty(frame.nbytes + ALIGNMENT, np.uint8)
            begin = -_address(memory) % ALIGNMENT
            whole = self._incoming[frame.channel] = memory[begin : begin + frame.nbytes]
        is_inside = theirs is not None and frame.place + frame.length <= theirs.nbytes
        if theirs is None or not is_inside or frame.at + frame.length > len(whole):
            raise self._gone("it sent a message with wrong places")
        ctypes.memmove(_address(whole) + frame.at, theirs.address + frame.place, frame.length)
        theirs.free = frame.end
        if frame.kind == _Kind.LAST:
            del self._incoming[frame.channel]
            self.arrived.setdefault(frame.channel, deque()).append(whole)

    def _grow(self, nbytes: int) -> None:
        """Replaces the ring by one for messages of this size, if the system has the memory."""
        wanted = min(1 << (nbytes * SHARE - 1).bit_length(), MOST_BYTES)
        self._can_grow = wanted < MOST_BYTES
        if wanted > self._ring.nbytes:
            try:
                self._ring = Ring.reserve(wanted)
            except OSError:  # then messages go in pieces
                self._can_grow = False
            else:
                self._pass_on()

    def _pass_on(self) -> None:
        """Gives the other process the memory of the ring."""
        self._rings = self._ring.number = self._rings + 1
        frame = (_Kind.MEMORY, self._rings, 0, self._ring.nbytes, 0, 0, 0, 0)
        try:
            self.socket.setblocking(True)  # rare, and nothing may come before it
            self.socket.send(_FRAME.pack(*frame))
            socket.send_fds(self.socket, [b"."], [self._ring.fd])
        except OSError as error:
            raise self._gone(str(error)) from error
        finally:
            self.socket.setblocking(False)
        os.close(self._ring.fd)  # the memory stays as long as it is mapped

    def _say(self, frame: tuple[int, ...]) -> bool:
        """Sends the fields of a `_Note`; False if the socket takes none at present."""
        try:
            self.socket.send(_FRAME.pack(*frame))
        except BlockingIOError:
            self.is_blocked = True
            return False
        except OSError as error:
            raise self._gone(str(error)) from error
        self.is_blocked = False
        return True

    def _receive(self) -> _Note | None:
        try:
            data = self.socket.recv(_FRAME.size)
        except BlockingIOError:
            return None
        except ConnectionResetError:
            # Said once, when the other end has gone without reading all. What it sent comes next.
            return self._receive()
        except OSError as error:
            raise self._gone(str(error)) from error
        if len(data) != _FRAME.size:
            raise self._gone("it closed the connection")
        return _Note._make(_FRAME.unpack(data))

    def _take_over(self, frame: _Note) -> None:
        """Maps the memory of the other process's new ring, whose descriptor follows the frame."""
        self.socket.setblocking(True)
        try:
            _, fds, _, _ = socket.recv_fds(self.socket, 1, 1)
        except OSError as error:
            raise self._gone(str(error)) from error
        finally:
            self.socket.setblocking(False)
        if not fds:
            raise self._gone("it closed the connection")
        self._theirs, self._told = Ring(fds[0], frame.nbytes, frame.ring), 0
        os.close(fds[0])

    def _gone(self, why: str) -> ProcessError:
        return ProcessError(
            f"The connection to process {self.process}, on this machine, has ended: {why}. Look "
            "at the output of that process."
        )


def _address(memory: np.ndarray) -> int:
    return memory.__array_interface__["data"][0]
