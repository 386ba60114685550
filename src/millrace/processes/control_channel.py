"""A line from each process to process 0, on which all hear of the first failure.

    process 1 ---+
    process 2 ---+--- process 0, which passes on what it hears
    process 3 ---+

The kernel closes the line of a process that dies, whatever killed it, so the others know within
milliseconds. Heartbeats need a timeout instead, which no garbage collection and no compilation
may exceed; JAX has them (in C++), and they remain for machines that vanish from the network.
"""

import dataclasses
import json
import os
import selectors
import socket
import threading
from typing import Any

from millrace.processes.facts import Member

DIED = (
    "it died without a Python error. It was killed (SIGKILL), ran out of memory, crashed in "
    "compiled code, or lost its machine. Its own output, or the log of its machine, says more."
)
_SEND_SECONDS = 5.0  # a process that reads nothing for so long cannot be told anything
_LONGEST = 1 << 22  # bytes of one message, the list of all processes being the longest


@dataclasses.dataclass(frozen=True, slots=True)
class Failure:
    """Which process failed, and how."""

    process: Member
    text: str

    def __str__(self) -> str:
        return f"{self.process} failed: {self.text}"


class Connection:
    """Messages over a socket, each one line of JSON."""

    def __init__(self, connected: socket.socket):
        self.socket = connected
        self._lock = threading.Lock()
        self._early: list[dict[str, Any]] = []
        self._unread = b""
        connected.settimeout(_SEND_SECONDS)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, **message: Any) -> bool:
        """Sends a message; False if the other side has gone."""
        with self._lock:
            try:
                self.socket.sendall(json.dumps(message).encode() + b"\n")
            except OSError:
                return False
        return True

    def first(self, timeout: float) -> dict[str, Any] | None:
        """Waits for the first message; None at the end.

        Raises:
            TimeoutError: if nothing came in `timeout` seconds.
            ValueError: if what came is no message of ours.
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

    def messages(self) -> list[dict[str, Any]] | None:
        """Reads what has come, which may be no whole message; None at the end."""
        try:
            return self._receive()
        except (TimeoutError, ValueError):
            return []

    def early(self) -> list[dict[str, Any]]:
        """What came together with the first message."""
        early, self._early = self._early, []
        return early

    def _receive(self) -> list[dict[str, Any]] | None:
        try:
            received = self.socket.recv(65536)
        except TimeoutError as error:
            if error.errno is None:
                raise  # Ours; with a number it is the kernel's, whose keep-alive gave up.
            return None
        except OSError:  # A reset is an end, too.
            return None
        if not received:
            return None
        *lines, self._unread = (self._unread + received).split(b"\n")
        messages = [json.loads(line) for line in lines]
        if len(self._unread) > _LONGEST or not all(isinstance(one, dict) for one in messages):
            raise ValueError("no message of ours")
        return messages

    def keep_alive(self, seconds: int) -> None:
        """Ends the connection if the other machine has not answered for about `seconds`."""
        options = {"TCP_KEEPIDLE": max(seconds // 2, 1), "TCP_KEEPINTVL": max(seconds // 6, 1)}
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in (options | {"TCP_KEEPCNT": 3}).items():
            if hasattr(socket, name):  # macOS calls the first one otherwise.
                self.socket.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def close(self) -> None:
        """Closes the socket."""
        self.socket.close()


class ControlChannel:
    """This process's end of the line, or of all lines in process 0.

    Args:
        index: the number of this process.
        members: all processes of the run.
        connections: to process 0; in process 0, to every other one.
    """

    def __init__(self, index: int, members: list[Member], connections: dict[int, Connection]):
        self.index = index
        self.members = members
        self.failed = threading.Event()  # `first` is known
        self.alone = threading.Event()  # every connection has ended
        self.first: Failure | None = None
        self.connections = connections
        self._left: set[int] = set()
        self._lock = threading.Lock()

    def start(self) -> None:
        """Begins to listen, in a thread that ends with the process."""
        # A forked child would keep the connection open after the death of its parent.
        os.register_at_fork(after_in_child=self.close)
        threading.Thread(target=self._listen, name="millrace line", daemon=True).start()

    def announce(self, text: str, wait_seconds: float = 2.0) -> None:
        """Tells all processes that this one failed, unless another one was first."""
        failure = Failure(self.members[self.index], text)
        if self.index == 0:
            self._record(failure)
            return
        # Process 0 decides who was first, and answers with that. It has told the others by then,
        # so that nobody takes the end of this process for the first failure.
        told = self.connections[0].send(kind="failure", process=self.index, text=text)
        if not (told and self.failed.wait(wait_seconds)):
            self._record(failure)

    def leave(self) -> None:
        """Says that this process has done its work: its end is no failure."""
        for connection in self.connections.values():
            connection.send(kind="bye")

    def close(self) -> None:
        """Closes the connections without a word."""
        for connection in self.connections.values():
            connection.close()

    def _listen(self) -> None:
        with selectors.DefaultSelector() as selector:
            for index, connection in self.connections.items():
                self._hear(index, connection.early())
                selector.register(connection.socket, selectors.EVENT_READ, index)
            while selector.get_map():
                for key, _ in selector.select():
                    index = key.data
                    messages = self.connections[index].messages()
                    self._hear(index, messages or [])
                    if messages is None:
                        selector.unregister(key.fileobj)
                        if index not in self._left:
                            self._record(Failure(self.members[index], DIED))
        self.alone.set()

    def _hear(self, sender: int, messages: list[dict[str, Any]]) -> None:
        for message in messages:
            if message["kind"] == "bye":
                self._left.add(sender)
            elif message["kind"] == "failure":
                self._record(Failure(self.members[message["process"]], message["text"]))

    def _record(self, failure: Failure) -> None:
        with self._lock:
            first = self.first = self.first or failure
        if self.index == 0:  # Also to a process that failed second, which waits for an answer.
            for connection in self.connections.values():
                connection.send(kind="failure", process=first.process.index, text=first.text)
        self.failed.set()
