"""How the processes of a run find each other: all come to the coordinator's port.

Process 0 waits there until all have come, answers everyone, and leaves the port to JAX's own
coordinator. The connections stay, as the line of `line.py`. JAX could wait for the others itself,
but when somebody is missing, is there twice or counts otherwise, it aborts the process in C++
after a timeout and cannot say who. And its server shares a port that another run of the same
user has taken, which mixes the two.
"""

import contextlib
import dataclasses
import errno
import socket
import time
from typing import Any

from millrace.errors import ProcessError
from millrace.processes.control_channel import Connection, ControlChannel
from millrace.processes.facts import Member

_HELLO_SECONDS = 5.0  # for who connects to say who it is
_RETRY_SECONDS = 0.1


@dataclasses.dataclass(frozen=True, slots=True)
class Rendezvous:
    """Where the processes of a run meet, and which one this is."""

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
        """Whether the address is of this machine only."""
        return self.host in ("localhost", "::1") or self.host.startswith("127.")


def meet(
    place: Rendezvous, seed: int, timeout: float, heartbeat_timeout: int
) -> tuple[ControlChannel, int]:
    """Waits until all processes have come.

    Args:
        place: where they meet.
        seed: that of process 0 becomes the one of all.
        timeout: in seconds.
        heartbeat_timeout: seconds after which a machine that does not answer is given up.

    Returns:
        The line between them, which does not listen yet, and the common seed.

    Raises:
        ProcessError: if not all came, or those that came do not fit together.
    """
    deadline = time.monotonic() + timeout
    if place.index == 0:
        line = _gather(place, seed, deadline, timeout)
    else:
        line, seed = _join(place, deadline, timeout)
    for connection in line.connections.values():
        connection.keep_alive(heartbeat_timeout)
    return line, seed


def _gather(place: Rendezvous, seed: int, deadline: float, timeout: float) -> ControlChannel:
    members = {0: Member.this(0)}
    connections: dict[int, Connection] = {}
    arrived: list[Connection] = []
    with _server(place) as server:
        try:
            while len(members) < place.count:
                connection, member, count = _next(server, deadline)
                arrived.append(connection)
                _check(place, members, member, count)
                connections[member.index] = connection
                members[member.index] = member
        except (TimeoutError, ProcessError) as error:
            error = _missing(place, members, timeout) if isinstance(error, TimeoutError) else error
            for connection in arrived:
                connection.send(kind="error", text=str(error))
                connection.close()
            raise error from None
    # The port is free again here, so that JAX can take it before the others look for it.
    everyone = [members[index] for index in range(place.count)]
    listed = [dataclasses.astuple(member) for member in everyone]
    for connection in arrived:
        connection.send(kind="welcome", members=listed, seed=seed)
    return ControlChannel(0, everyone, connections)


def _missing(place: Rendezvous, members: dict[int, Member], timeout: float) -> ProcessError:
    missing = ", ".join(str(index) for index in range(place.count) if index not in members)
    return ProcessError(
        f"Of {place.count} processes, these did not come to {place.address} in {timeout:g} "
        f"seconds: {missing}. See whether they were started and can reach this machine, or set a "
        "larger initialization_timeout."
    )


def _server(place: Rendezvous) -> socket.socket:
    try:
        if place.is_local:
            family = socket.AF_INET6 if place.host == "::1" else socket.AF_INET
            return socket.create_server((place.host, place.port), family=family)
        if socket.has_dualstack_ipv6():
            return socket.create_server(
                ("", place.port), family=socket.AF_INET6, dualstack_ipv6=True
            )
        return socket.create_server(("", place.port))
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        raise ProcessError(
            f"Port {place.port} of this machine is in use, and process 0 needs it for "
            f"coordinator_address={place.address!r}. End what uses it, an earlier run perhaps, or "
            "set coordinator_address to another port, the same in every process."
        ) from error


def _next(server: socket.socket, deadline: float) -> tuple[Connection, Member, int]:
    """The next process that comes, and how many it thinks there are."""
    while True:
        server.settimeout(max(deadline - time.monotonic(), 0.001))
        connection = Connection(server.accept()[0])
        # What does not say hello, a scanner of ports say, is none of ours.
        with contextlib.suppress(TimeoutError, ValueError, KeyError, TypeError):
            hello = connection.first(_HELLO_SECONDS) or {}
            return connection, Member(*hello["member"]), hello["count"]
        connection.close()


def _check(place: Rendezvous, members: dict[int, Member], member: Member, count: int) -> None:
    if count != place.count:
        raise ProcessError(
            f"{members[0]} was told num_processes={place.count}, and {member} "
            f"num_processes={count}. Set the same number in all."
        )
    if member.index in members:
        raise ProcessError(
            f"There are two processes {member.index}: {members[member.index]} and {member}. "
            f"Set process_id to another number from 0 to {count - 1} in each. Two runs at once "
            "need a coordinator_address each."
        )


def _join(place: Rendezvous, deadline: float, timeout: float) -> tuple[ControlChannel, int]:
    connection = _connect(place, deadline, timeout)
    connection.send(
        kind="hello", member=dataclasses.astuple(Member.this(place.index)), count=place.count
    )
    try:
        # Process 0 gives up first, and says who is missing.
        left = max(deadline - time.monotonic(), 0) + _HELLO_SECONDS
        answer = _answer(place, connection, left, timeout)
    except ProcessError:
        connection.close()
        raise
    members = [Member(*member) for member in answer["members"]]
    return ControlChannel(place.index, members, {0: connection}), answer["seed"]


def _answer(
    place: Rendezvous, connection: Connection, left: float, timeout: float
) -> dict[str, Any]:
    who = "something else than process 0 answers"
    try:
        answer = connection.first(left)
    except TimeoutError as error:
        raise ProcessError(
            f"Process 0 at {place.address} did not answer in {timeout:g} seconds. Look at its "
            "output, or set coordinator_address to where it is."
        ) from error
    except ValueError:
        answer = {}
    if answer is None:
        answer, who = {}, "process 0 went away"
    kind = answer.get("kind")
    if kind == "error":
        raise ProcessError(answer["text"])
    if kind != "welcome":
        raise ProcessError(
            f"Process {place.index} came to {place.address}, and {who} there. Look at the output "
            "of process 0, or set coordinator_address to another port, the same in every process."
        )
    return answer


def _connect(place: Rendezvous, deadline: float, timeout: float) -> Connection:
    """Knocks until process 0 is there."""
    while True:
        left = deadline - time.monotonic()
        try:
            return Connection(
                socket.create_connection((place.host, place.port), max(left, _RETRY_SECONDS))
            )
        except OSError as error:  # It has not started, or its name is not known yet.
            if left <= 0:
                raise ProcessError(
                    f"Process {place.index} cannot reach process 0 at {place.address}: "
                    f"{error}, for {timeout:g} seconds. See whether process 0 was started, set "
                    "coordinator_address to where it is, or set a larger initialization_timeout."
                ) from error
        time.sleep(_RETRY_SECONDS)
