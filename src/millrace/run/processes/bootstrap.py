"""Rendezvous of the processes of a run at the coordinator's port.

Process 0 waits there until all have connected, answers all, and leaves the port to JAX's own
coordinator. The connections stay, as a `ControlChannel`. JAX could wait for the others itself, but
if a process is missing, is there twice or expects another number of processes, it aborts in C++
after a timeout and cannot name the process. And its server shares a port that another run of the
same user has taken, which mixes the two runs.

    process 0                                  process 1
                                       <---    hello: its number, the run, how many it expects
    welcome, when all have come        --->
    or error

A process of another run is told so. Nothing keeps it, or a stranger, from saying that it belongs to
this one: JAX's own ports trust the network, too.
"""

import contextlib
import dataclasses
import errno
import ipaddress
import logging
import selectors
import socket
import time

from millrace.errors import ProcessError
from millrace.run.processes.agreement import Member
from millrace.run.processes.control_channel import Connection, ControlChannel, ProcessMessage
from millrace.run.processes.listening import listen

_LOGGER = logging.getLogger("millrace")
_HELLO_SECONDS = 5.0  # for a new connection to introduce itself
_PATIENCE_SECONDS = 5.0  # longer than process 0, which gives up first and names the missing ones
_RETRY_SECONDS = 0.1


@dataclasses.dataclass(frozen=True, slots=True)
class Rendezvous:
    """The address where the processes of a run meet, and the number of this one."""

    address: str  # host:port, as in coordinator_address
    index: int
    count: int
    run: str = ""  # by which processes of another run are told apart; empty: not known
    bind_address: str | None = None  # where process 0 listens, if not at `address`

    @property
    def host(self) -> str:
        """The host in the address."""
        return _host_and_port(self.address)[0]

    @property
    def port(self) -> int:
        """The port in the address."""
        return _host_and_port(self.address)[1]


@dataclasses.dataclass(frozen=True, slots=True)
class Meeting:
    """Facts that a process knows when all have connected."""

    channel: ControlChannel  # it does not listen yet
    seed: int  # that of process 0
    bind_address: str | None = None  # where all reach process 0; None if not all by one address


@dataclasses.dataclass(frozen=True, slots=True)
class _Newcomer:
    """A process that has introduced itself to process 0."""

    connection: Connection
    member: Member
    count: int  # of the processes that it expects
    run: str

    @property
    def local_address(self) -> str:
        """The address of this machine that the process has connected to."""
        return self.connection.socket.getsockname()[0]


def meet(rendezvous: Rendezvous, seed: int, timeout: float, heartbeat_timeout: int) -> Meeting:
    """Waits until all processes have connected.

    Args:
        rendezvous: address and numbers.
        seed: of this process; that of process 0 becomes the common one.
        timeout: in seconds.
        heartbeat_timeout: seconds after which a machine that does not answer counts as failed.

    Raises:
        ProcessError: if processes are missing, belong to another run, or contradict each other.
    """
    deadline = time.monotonic() + timeout
    if rendezvous.index == 0:
        meeting = _gather(rendezvous, seed, deadline, timeout)
    else:
        meeting = _join(rendezvous, deadline, timeout)
    for connection in meeting.channel.connections.values():
        connection.keep_alive(heartbeat_timeout)
    return meeting


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _gather(rendezvous: Rendezvous, seed: int, deadline: float, timeout: float) -> Meeting:
    members = {0: Member.this(0)}
    arrived: list[_Newcomer] = []
    servers = _servers(rendezvous)
    listening = [server.getsockname()[0] for server in servers]
    try:
        while len(members) < rendezvous.count:
            newcomer = _next(servers, deadline)
            if newcomer.run != rendezvous.run:
                _refuse(rendezvous, newcomer)
                continue
            arrived.append(newcomer)
            _check(rendezvous, members, newcomer.member, newcomer.count)
            members[newcomer.member.index] = newcomer.member
    except (TimeoutError, ProcessError) as error:
        if isinstance(error, TimeoutError):
            error = _missing(rendezvous, members, timeout)
        for newcomer in arrived:
            newcomer.connection.send(kind="error", text=str(error))
            newcomer.connection.close()
        raise error from None
    finally:
        for server in servers:
            server.close()
    # The port is free again here, so that JAX can take it before the others look for it.
    everyone = [members[index] for index in range(rendezvous.count)]
    listed = [dataclasses.astuple(member) for member in everyone]
    for newcomer in arrived:
        newcomer.connection.send(kind="welcome", members=listed, seed=seed)
    connections = {newcomer.member.index: newcomer.connection for newcomer in arrived}
    bind = _common_address(rendezvous, listening, arrived)
    return Meeting(ControlChannel(0, everyone, connections), seed, bind)


def _servers(rendezvous: Rendezvous) -> list[socket.socket]:
    host, port = _host_and_port(rendezvous.bind_address or rendezvous.address)
    try:
        return listen(host, port)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        raise ProcessError(
            f"Port {port} of this machine is in use, and process 0 needs it for "
            f"coordinator_address={rendezvous.address!r}. End the process that uses it, perhaps an "
            "earlier run, or set coordinator_address to another port, the same in every process."
        ) from error


def _common_address(
    rendezvous: Rendezvous, listening: list[str], arrived: list[_Newcomer]
) -> str | None:
    """Returns the address for JAX's coordinator, which listens on one or on all."""
    reached = {newcomer.local_address for newcomer in arrived}
    if len(reached) > 1 or any(ipaddress.ip_address(each).is_unspecified for each in listening):
        return None
    (address,) = reached
    port = _host_and_port(rendezvous.bind_address or rendezvous.address)[1]
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _next(servers: list[socket.socket], deadline: float) -> _Newcomer:
    """Waits for the next process that connects and introduces itself.

    Raises:
        TimeoutError: if none has come before `deadline`, on the monotonic clock.
    """
    with selectors.DefaultSelector() as selector:
        for server in servers:
            server.setblocking(False)
            selector.register(server, selectors.EVENT_READ, server)
        while (left := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(left)[:1]:
                with contextlib.suppress(BlockingIOError, ConnectionError):  # it has gone already
                    connected = key.data.accept()[0]
                    if (newcomer := _introduced(Connection(connected))) is not None:
                        return newcomer
    raise TimeoutError


def _introduced(connection: Connection) -> _Newcomer | None:
    """Returns the process that has connected; None for anything else, such as a port scanner."""
    with contextlib.suppress(TimeoutError, ConnectionError, ValueError, KeyError, TypeError):
        hello = connection.first(_HELLO_SECONDS)
        if hello is not None and hello["kind"] == "hello":
            index, host, pid = hello["member"]
            member = Member(int(index), str(host), int(pid))
            return _Newcomer(connection, member, int(hello["count"]), hello["run"])
    connection.close()
    return None


def _refuse(rendezvous: Rendezvous, newcomer: _Newcomer) -> None:
    """Tells a process of another run that it is in the wrong place."""
    _LOGGER.warning("%s belongs to another run, and cannot join this one.", newcomer.member)
    newcomer.connection.send(
        kind="error",
        text=f"{newcomer.member} belongs to another run than process 0 at {rendezvous.address}. "
        "Set coordinator_address to where process 0 of its own run is.",
    )
    newcomer.connection.close()


def _missing(rendezvous: Rendezvous, members: dict[int, Member], timeout: float) -> ProcessError:
    missing = ", ".join(str(index) for index in range(rendezvous.count) if index not in members)
    return ProcessError(
        f"Of {rendezvous.count} processes, these did not come to {rendezvous.address} in "
        f"{timeout:g} seconds: {missing}. Check that they were started and can reach this machine, "
        "or set a larger initialization_timeout."
    )


def _check(rendezvous: Rendezvous, members: dict[int, Member], member: Member, count: int) -> None:
    if count != rendezvous.count:
        raise ProcessError(
            f"{members[0]} has num_processes={rendezvous.count}, and {member} has "
            f"num_processes={count}. Set the same number in all."
        )
    if member.index in members:
        raise ProcessError(
            f"There are two processes {member.index}: {members[member.index]} and {member}. "
            f"Set process_id to another number from 0 to {count - 1} in each. Two runs at once "
            "need a coordinator_address each."
        )


def _join(rendezvous: Rendezvous, deadline: float, timeout: float) -> Meeting:
    connection = _connect(rendezvous, deadline, timeout)
    connection.send(
        kind="hello",
        member=dataclasses.astuple(Member.this(rendezvous.index)),
        count=rendezvous.count,
        run=rendezvous.run,
    )
    try:
        answer = _answer(rendezvous, connection, deadline, timeout)
    except ProcessError:
        connection.close()
        raise
    members = [Member(*member) for member in answer["members"]]
    return Meeting(ControlChannel(rendezvous.index, members, {0: connection}), answer["seed"])


def _answer(
    rendezvous: Rendezvous, connection: Connection, deadline: float, timeout: float
) -> ProcessMessage:
    """Waits for process 0, which answers when all have come, or when it gives up."""
    try:
        answer = connection.first(max(deadline - time.monotonic(), 0) + _PATIENCE_SECONDS)
    except TimeoutError as error:
        raise ProcessError(
            f"Process 0 at {rendezvous.address} did not answer in {timeout:g} seconds. Look at its "
            "output, or set coordinator_address to where it is."
        ) from error
    except ValueError as error:  # not a message
        raise _not_process_0(rendezvous, "something other than process 0 answers") from error
    if answer is None:
        raise _not_process_0(rendezvous, "process 0 closed the connection")
    if answer["kind"] == "error":
        raise ProcessError(answer["text"])
    if answer["kind"] != "welcome":
        raise _not_process_0(rendezvous, "something other than process 0 answers")
    return answer


def _not_process_0(rendezvous: Rendezvous, reason: str) -> ProcessError:
    return ProcessError(
        f"Process {rendezvous.index} connected to {rendezvous.address}, but {reason}. Look at "
        "the output of process 0, or set coordinator_address to another port, the same in "
        "every process."
    )


def _connect(rendezvous: Rendezvous, deadline: float, timeout: float) -> Connection:
    """Tries to connect until process 0 accepts."""
    while True:
        left = deadline - time.monotonic()
        try:
            return Connection(
                socket.create_connection(
                    (rendezvous.host, rendezvous.port), max(left, _RETRY_SECONDS)
                )
            )
        except OSError as error:  # it has not started, or its name cannot be resolved yet
            if left <= 0:
                raise ProcessError(
                    f"Process {rendezvous.index} cannot reach process 0 at {rendezvous.address}: "
                    f"{error}, for {timeout:g} seconds. Check that process 0 was started, set "
                    "coordinator_address to where it is, or set a larger initialization_timeout."
                ) from error
        time.sleep(_RETRY_SECONDS)
