"""The port at which the processes of a run arrive. Strangers are dropped, and delay nobody.

Connections wait side by side for a hello that proves the secret of the run (`handshake.py`). Each
has a few seconds and a few thousand bytes; if there are too many at once, the oldest is dropped.
"""

import collections
import contextlib
import dataclasses
import errno
import ipaddress
import json
import logging
import selectors
import socket
import time
from typing import Self

from millrace.processes.agreement import Member
from millrace.processes.control_channel import Connection
from millrace.processes.handshake import VARIABLE, Handshake, new_secret
from millrace.records.json_text import parse_json

_LOGGER = logging.getLogger("millrace")
_HELLO_SECONDS = 5.0  # for a new connection to introduce itself
_LONGEST_HELLO = 4096  # bytes
_MOST_WAITING = 256  # connections without a hello, or as many as the run has processes
_BACKLOG = 1024  # connections that the kernel holds until they are accepted
_ELSEWHERE = {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}


def listen(host: str, port: int) -> list[socket.socket]:
    """Listens on the addresses of this machine that `host` names; on all if it names none.

    It may name none where the others know this machine by the address of a router or a service. A
    name that is a loopback address here may be another one elsewhere: Debian gives a machine's own
    name the address 127.0.1.1.

    Raises:
        OSError: if the port is in use.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except socket.gaierror:  # the name will be known later
        found = []
    servers: list[socket.socket] = []
    addresses = {str(where[0]): (family, where) for family, _, _, _, where in found}
    if names_loopback(host) or not all(_is_loopback(address) for address in addresses):
        for family, where in addresses.values():
            try:
                servers.append(socket.create_server(where, family=family, backlog=_BACKLOG))
            except OSError as error:
                if error.errno not in _ELSEWHERE:
                    for server in servers:
                        server.close()
                    raise
    return servers or [_everywhere(host, port, list(addresses))]


def names_loopback(host: str) -> bool:
    """Whether a host is this machine for every machine, by its text."""
    return host == "localhost" or _is_loopback(host)


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:  # a name
        return False


def _everywhere(host: str, port: int, addresses: list[str]) -> socket.socket:
    _LOGGER.info(
        "Process 0 listens on all interfaces of this machine: %r is %s here, by which the others "
        "may not reach it. Set JAX_COORDINATOR_BIND_ADDRESS to an address and the port, such as "
        "10.0.0.1:%d, to listen on that one only.",
        host,
        " and ".join(addresses) or "not known",
        port,
    )
    if socket.has_dualstack_ipv6():
        return socket.create_server(
            ("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=_BACKLOG
        )
    return socket.create_server(("", port), backlog=_BACKLOG)


@dataclasses.dataclass(frozen=True, slots=True)
class Newcomer:
    """A process that knows the secret of the run, and the number of processes that it expects."""

    connection: Connection
    handshake: Handshake
    member: Member
    count: int

    @property
    def local_address(self) -> str:
        """The address of this machine that the process has connected to."""
        return self.connection.socket.getsockname()[0]

    def send(self, **message: object) -> bool:
        """Sends a message with a proof, and returns False if the process has gone."""
        return self.connection.send(**self.handshake.seal(**message))


@dataclasses.dataclass(slots=True, eq=False)
class _Visitor:
    """A connection that has not introduced itself."""

    socket: socket.socket
    handshake: Handshake
    until: float
    received: bytes = b""


class Entrance:
    """Accepts connections on some sockets, and returns those of processes of the run.

    Args:
        servers: sockets that listen. They are closed with it, as are visitors that still wait.
        secret: of the run.
        count: number of processes in the run.
    """

    def __init__(self, servers: list[socket.socket], secret: str, count: int):
        self.refused = 0  # connections that sent something other than a hello with a right proof
        self._secret, self._count = secret, count
        self._servers = servers
        self._visitors: collections.OrderedDict[int, _Visitor] = collections.OrderedDict()
        self._newcomers: collections.deque[Newcomer] = collections.deque()
        self._selector = selectors.DefaultSelector()
        for server in servers:
            server.setblocking(False)
            self._selector.register(server, selectors.EVENT_READ)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for visitor in list(self._visitors.values()):
            self._drop(visitor)
        self._selector.close()
        for server in self._servers:
            server.close()
        for newcomer in self._newcomers:  # more than were asked for
            newcomer.connection.close()

    def next(self, deadline: float) -> Newcomer:
        """Waits for the next process of the run.

        Raises:
            TimeoutError: if none has come before `deadline`, on the monotonic clock.
        """
        while not self._newcomers:
            now = time.monotonic()
            while self._visitors and self._oldest().until <= now:
                self._drop(self._oldest())
            if now >= deadline:
                raise TimeoutError
            until = min(deadline, self._oldest().until) if self._visitors else deadline
            for key, _ in self._selector.select(until - now):
                if key.data is None:
                    self._accept(key.fileobj)  # type: ignore[arg-type]
                elif key.data.socket.fileno() >= 0:  # not dropped in this round
                    self._read(key.data)
        return self._newcomers.popleft()

    def _oldest(self) -> _Visitor:
        return next(iter(self._visitors.values()))

    def _accept(self, server: socket.socket) -> None:
        try:
            connected = server.accept()[0]
        except (BlockingIOError, ConnectionError):  # it has gone already
            return
        except OSError:  # too many files are open
            if not self._visitors:
                raise
            self._drop(self._oldest())
            return
        connected.setblocking(False)
        handshake = Handshake(self._secret, new_secret())
        visitor = _Visitor(connected, handshake, time.monotonic() + _HELLO_SECONDS)
        self._visitors[id(visitor)] = visitor
        self._selector.register(connected, selectors.EVENT_READ, visitor)
        _send(connected, kind="challenge", challenge=handshake.challenge)
        if len(self._visitors) > max(_MOST_WAITING, self._count):
            self._drop(self._oldest())

    def _read(self, visitor: _Visitor) -> None:
        try:
            received = visitor.socket.recv(_LONGEST_HELLO + 1 - len(visitor.received))
        except BlockingIOError:
            return
        except OSError:
            received = b""
        visitor.received += received
        if received and b"\n" not in received and len(visitor.received) <= _LONGEST_HELLO:
            return
        newcomer = self._introduced(visitor) if received else None
        if newcomer is None:
            if received:
                self._refuse(visitor)
            self._drop(visitor)
            return
        self._forget(visitor)
        self._newcomers.append(newcomer)
        newcomer.send(kind="accepted")

    def _introduced(self, visitor: _Visitor) -> Newcomer | None:
        try:
            hello = visitor.handshake.open(parse_json(visitor.received))
            if hello is None:
                return None
            handshake = visitor.handshake.with_answer(hello["challenge"])
            index, host, pid = hello["member"]
            member, count = Member(int(index), str(host), int(pid)), int(hello["count"])
            connection = Connection(visitor.socket)
        except (ValueError, KeyError, TypeError, OSError):  # not a hello, or it has gone
            return None
        return Newcomer(connection, handshake, member, count)

    def _refuse(self, visitor: _Visitor) -> None:
        self.refused += 1
        _send(visitor.socket, kind="refused")
        if self.refused == 1:  # once, since a stranger could fill the log
            with contextlib.suppress(OSError):
                _LOGGER.warning(
                    "A connection from %s does not know the secret of this run, and is refused. If "
                    "it is one of its processes, set %s to the same value in every process.",
                    visitor.socket.getpeername()[0],
                    VARIABLE,
                )

    def _drop(self, visitor: _Visitor) -> None:
        self._forget(visitor)
        visitor.socket.close()

    def _forget(self, visitor: _Visitor) -> None:
        self._selector.unregister(visitor.socket)
        del self._visitors[id(visitor)]


def _send(connected: socket.socket, **message: str) -> None:
    # To a new connection, whose buffer in the kernel is empty: it takes the message whole.
    with contextlib.suppress(OSError):
        connected.send(json.dumps(message).encode() + b"\n")
