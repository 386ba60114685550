"""Rendezvous of the processes of a run at the coordinator's port.

Process 0 waits there until all have connected, answers all, and leaves the port to JAX's own
coordinator. The connections stay, as a `ControlChannel`. JAX could wait for the others itself, but
if a process is missing, is there twice or expects another number of processes, it aborts in C++
after a timeout and cannot name the process. And its server shares a port that another run of the
same user has taken, which mixes the two runs.
"""

import contextlib
import dataclasses
import errno
import socket
import time

from millrace.errors import ProcessError
from millrace.processes.agreement import Member
from millrace.processes.control_channel import Connection, ControlChannel, Welcome

_HELLO_SECONDS = 5.0  # within which a new connection must introduce itself
_RETRY_SECONDS = 0.1


@dataclasses.dataclass(frozen=True, slots=True)
class Rendezvous:
    """The address where the processes of a run meet, and the number of this one."""

    address: str  # host:port, as in coordinator_address
    index: int
    count: int

    @property
    def host(self) -> str:
        """The host in the address."""
        return self.address.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        """The port in the address."""
        return int(self.address.rpartition(":")[2])

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach the address."""
        return self.host in ("localhost", "::1") or self.host.startswith("127.")


def meet(
    rendezvous: Rendezvous, seed: int, timeout: float, heartbeat_timeout: int
) -> tuple[ControlChannel, int]:
    """Waits until all processes have connected.

    Args:
        rendezvous: address and numbers.
        seed: of this process; that of process 0 becomes the common one.
        timeout: in seconds.
        heartbeat_timeout: seconds after which a machine that does not answer counts as failed.

    Returns:
        The channel between the processes, which does not listen yet, and the common seed.

    Raises:
        ProcessError: if processes are missing, or contradict each other.
    """
    deadline = time.monotonic() + timeout
    if rendezvous.index == 0:
        channel = _gather(rendezvous, seed, deadline, timeout)
    else:
        channel, seed = _join(rendezvous, deadline, timeout)
    for connection in channel.connections.values():
        connection.keep_alive(heartbeat_timeout)
    return channel, seed


def _gather(rendezvous: Rendezvous, seed: int, deadline: float, timeout: float) -> ControlChannel:
    members = {0: Member.this(0)}
    connections: dict[int, Connection] = {}
    arrived: list[Connection] = []
    with _server(rendezvous) as server:
        try:
            while len(members) < rendezvous.count:
                connection, member, count = _next(server, deadline)
                arrived.append(connection)
                _check(rendezvous, members, member, count)
                connections[member.index] = connection
                members[member.index] = member
        except (TimeoutError, ProcessError) as error:
            error = (
                _missing(rendezvous, members, timeout) if isinstance(error, TimeoutError) else error
            )
            for connection in arrived:
                connection.send(kind="error", text=str(error))
                connection.close()
            raise error from None
    # The port is free again here, so that JAX can take it before the others look for it.
    everyone = [members[index] for index in range(rendezvous.count)]
    listed = [dataclasses.astuple(member) for member in everyone]
    for connection in arrived:
        connection.send(kind="welcome", members=listed, seed=seed)
    return ControlChannel(0, everyone, connections)


def _missing(rendezvous: Rendezvous, members: dict[int, Member], timeout: float) -> ProcessError:
    missing = ", ".join(str(index) for index in range(rendezvous.count) if index not in members)
    return ProcessError(
        f"Of {rendezvous.count} processes, these did not come to {rendezvous.address} in "
        f"{timeout:g} seconds: {missing}. Check that they were started and can reach this machine, "
        "or set a larger initialization_timeout."
    )


def _server(rendezvous: Rendezvous) -> socket.socket:
    try:
        if rendezvous.is_local:
            family = socket.AF_INET6 if rendezvous.host == "::1" else socket.AF_INET
            return socket.create_server((rendezvous.host, rendezvous.port), family=family)
        if socket.has_dualstack_ipv6():
            return socket.create_server(
                ("", rendezvous.port), family=socket.AF_INET6, dualstack_ipv6=True
            )
        return socket.create_server(("", rendezvous.port))
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        raise ProcessError(
            f"Port {rendezvous.port} of this machine is in use, and process 0 needs it for "
            f"coordinator_address={rendezvous.address!r}. End the process that uses it, perhaps an "
            "earlier run, or set coordinator_address to another port, the same in every process."
        ) from error


def _next(server: socket.socket, deadline: float) -> tuple[Connection, Member, int]:
    """Returns the next process that connects, and the number of processes that it expects."""
    while True:
        server.settimeout(max(deadline - time.monotonic(), 0.001))
        connection = Connection(server.accept()[0])
        # A connection without a hello is not a process of the run: a port scanner, for example.
        with contextlib.suppress(TimeoutError, ValueError, KeyError, TypeError):
            hello = connection.first(_HELLO_SECONDS)
            if hello is not None and hello["kind"] == "hello":
                return connection, Member(*hello["member"]), hello["count"]
        connection.close()


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


def _join(rendezvous: Rendezvous, deadline: float, timeout: float) -> tuple[ControlChannel, int]:
    connection = _connect(rendezvous, deadline, timeout)
    connection.send(
        kind="hello",
        member=dataclasses.astuple(Member.this(rendezvous.index)),
        count=rendezvous.count,
    )
    try:
        # Process 0 gives up first, and names the missing processes.
        left = max(deadline - time.monotonic(), 0) + _HELLO_SECONDS
        answer = _answer(rendezvous, connection, left, timeout)
    except ProcessError:
        connection.close()
        raise
    members = [Member(*member) for member in answer["members"]]
    return ControlChannel(rendezvous.index, members, {0: connection}), answer["seed"]


def _answer(rendezvous: Rendezvous, connection: Connection, left: float, timeout: float) -> Welcome:
    answer, reason = None, "something other than process 0 answers"
    try:
        answer = connection.first(left)
        if answer is None:
            reason = "process 0 closed the connection"
    except TimeoutError as error:
        raise ProcessError(
            f"Process 0 at {rendezvous.address} did not answer in {timeout:g} seconds. Look at its "
            "output, or set coordinator_address to where it is."
        ) from error
    except ValueError:  # not a message
        pass
    if answer is not None and answer["kind"] == "error":
        raise ProcessError(answer["text"])
    if answer is None or answer["kind"] != "welcome":
        raise ProcessError(
            f"Process {rendezvous.index} connected to {rendezvous.address}, but {reason}. Look at "
            "the output of process 0, or set coordinator_address to another port, the same in "
            "every process."
        )
    return answer


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
