"""Connections from each process to process 0, over which all learn of the first failure.

    process 1 ---+
    process 2 ---+--- process 0, which forwards messages
    process 3 ---+

    kind       other fields            a line of JSON
    hello      member, count, run      a process introduces itself, and says how many it expects
    welcome    members, seed           process 0 answers when all have connected
    error      text                    process 0 gives up, or the process belongs to another run
    failure    process, text           a process has failed
    bye                                the sender is done

The kernel closes the connections of a process that dies, whatever killed it, so the others know
within milliseconds. Heartbeats would need a timeout longer than any garbage collection and any
compilation. JAX has heartbeats (in C++), for machines that vanish from the network.
"""

import dataclasses
import json
import os
import selectors
import socket
import threading
from typing import Any

from millrace.base.records.json_text import parse_json
from millrace.run.processes.agreement import Member

DIED = (
    "it died without a Python error. It was killed (SIGKILL, SIGTERM), ran out of memory, crashed "
    "in compiled code, or lost its machine. Its own output, or the log of its machine, says more."
)
_SEND_SECONDS = 5.0  # after which a process that does not read counts as gone
_LONGEST = 1 << 22  # bytes of one message, the list of all processes being the longest


@dataclasses.dataclass(frozen=True, slots=True)
class Failure:
    """A process that failed, and its error."""

    process: Member
    text: str

    def __str__(self) -> str:
        return f"{self.process} failed: {self.text}"


ProcessMessage = dict[str, Any]  # as above


class Connection:
    """Messages over a socket, each one line of JSON."""

    def __init__(self, connected: socket.socket):
        self.socket = connected
        self._lock = threading.Lock()
        self._early: list[ProcessMessage] = []
        self._unread = b""
        connected.settimeout(_SEND_SECONDS)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, **message: object) -> bool:
        """Sends a `ProcessMessage`, and returns False if the other side has gone."""
        with self._lock:
            try:
                self.socket.sendall(json.dumps(message).encode() + b"\n")
            except OSError:
                return False
        return True

    def first(self, timeout: float) -> ProcessMessage | None:
        """Waits for the first message, and returns None if the connection ends.

        Raises:
            TimeoutError: if nothing arrives in `timeout` seconds.
            ValueError: if something other than a message arrives.
        """
        self.socket.settimeout(timeout)
        try:
            while not self._early:
                received = self._receive()
                if received is None:
                    return None
                self._early += received
        finally:
            self.socket.settimeout(_SEND_SECONDS)
        return self._early.pop(0)

    def messages(self) -> list[ProcessMessage] | None:
        """Returns the complete messages that have arrived; None if the connection has ended."""
        try:
            return self._receive()
        except (TimeoutError, ValueError):
            return []

    def early(self) -> list[ProcessMessage]:
        """Returns the messages that arrived together with the first one."""
        early, self._early = self._early, []
        return early

    def _receive(self) -> list[ProcessMessage] | None:
        try:
            received = self.socket.recv(65536)
        except TimeoutError as error:
            if error.errno is None:
                raise  # our own timeout; with a number it is the kernel's keep-alive that gave up
            return None
        except OSError:  # a reset is an end, too
            return None
        if not received:
            return None
        *lines, self._unread = (self._unread + received).split(b"\n")
        messages: list[Any] = [parse_json(line) for line in lines]
        if len(self._unread) > _LONGEST or not all(
            isinstance(message, dict) and "kind" in message for message in messages
        ):
            raise ValueError("not a message between processes of a run")
        return messages

    def keep_alive(self, seconds: int) -> None:
        """Ends the connection if the other machine has not answered for about `seconds`."""
        options = {"TCP_KEEPIDLE": max(seconds // 2, 1), "TCP_KEEPINTVL": max(seconds // 6, 1)}
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in (options | {"TCP_KEEPCNT": 3}).items():
            if hasattr(socket, name):  # macOS has another name for the first one
                self.socket.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def close(self) -> None:
        self.socket.close()


class ControlChannel:
    """The connections of this process: to process 0, or from process 0 to all others.

    A thread listens, from `start` until the last connection has ended, at the latest with the
    process. It may be the only one that still runs when a collective operation hangs.

    Args:
        index: the number of this process.
        members: all processes of the run.
        connections: to process 0; in process 0, to every other one.
    """

    def __init__(self, index: int, members: list[Member], connections: dict[int, Connection]):
        self.index = index
        self.members = members
        self.failed = threading.Event()  # `first` is set
        self.alone = threading.Event()  # every connection has ended
        self.first: Failure | None = None
        self.connections = connections
        self._left: set[int] = set()
        self._lock = threading.Lock()

    def start(self) -> None:
        """Starts the thread that listens."""
        # A forked child would keep the connection open after the death of its parent.
        os.register_at_fork(after_in_child=self.close)
        threading.Thread(target=self._listen, name="millrace control channel", daemon=True).start()

    def announce(self, text: str, wait_seconds: float = 2.0) -> None:
        """Tells all processes that this one failed, unless another one failed first."""
        failure = Failure(self.members[self.index], text)
        if self.index == 0:
            self._record(failure)
            return
        # Process 0 decides which failure was first, and answers with it. By then it has told the
        # others, so that they do not take the end of this process for the first failure.
        is_sent = self.connections[0].send(kind="failure", process=self.index, text=text)
        if not (is_sent and self.failed.wait(wait_seconds)):
            self._record(failure)

    def leave(self) -> None:
        """Announces that this process is done, so that its end is not taken for a failure."""
        for connection in self.connections.values():
            connection.send(kind="bye")

    def close(self) -> None:
        """Closes the connections without an announcement."""
        for connection in self.connections.values():
            connection.close()

    def _listen(self) -> None:
        with selectors.DefaultSelector() as selector:
            for index, connection in self.connections.items():
                self._handle(index, connection.early())
                selector.register(connection.socket, selectors.EVENT_READ, index)
            while selector.get_map():
                for key, _ in selector.select():
                    index = key.data
                    messages = self.connections[index].messages()
                    self._handle(index, messages or [])
                    if messages is None:
                        selector.unregister(key.fileobj)
                        if index not in self._left:
                            self._record(Failure(self.members[index], DIED))
        self.alone.set()

    def _handle(self, sender: int, messages: list[ProcessMessage]) -> None:
        for message in messages:
            if message["kind"] == "bye":
                self._left.add(sender)
            elif message["kind"] == "failure":
                self._record(Failure(self.members[message["process"]], message["text"]))

    def _record(self, failure: Failure) -> None:
        with self._lock:
            first = self.first = self.first or failure
        if self.index == 0:  # also to a process that failed second, which waits for an answer
            for connection in self.connections.values():
                connection.send(kind="failure", process=first.process.index, text=first.text)
        self.failed.set()
