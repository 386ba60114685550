"""Rendezvous of the processes of a run at the coordinator's port.

Process 0 waits there until all have connected, answers all, and leaves the port to JAX's own
coordinator. The connections stay, as a `ControlChannel`. JAX could wait for the others itself, but
if a process is missing, is there twice or expects another number of processes, it aborts in C++
after a timeout and cannot name the process. And its server shares a port that another run of the
same user has taken, which mixes the two runs.
"""

import dataclasses
import errno
import ipaddress
import socket
import time
from typing import Any

from millrace.errors import ProcessError
from millrace.processes.agreement import Member
from millrace.processes.control_channel import Connection, ControlChannel, ProcessMessage
from millrace.processes.entrance import Entrance, Newcomer, listen, names_loopback
from millrace.processes.handshake import VARIABLE, Handshake, new_secret

_PATIENCE_SECONDS = 5.0  # longer than process 0, which gives up first and names the missing ones
_RETRY_SECONDS = 0.1
_OTHER = "something other than process 0 answers"
_ATTEMPTS = 10  # process 0 drops connections while it has too many


@dataclasses.dataclass(frozen=True, slots=True)
class Rendezvous:
    """The address where the processes of a run meet, and the number of this one."""

    address: str  # host:port, as in coordinator_address
    index: int
    count: int
    secret: str = dataclasses.field(default="", repr=False)  # empty for a run without one
    bind_address: str | None = None  # where process 0 listens, if not at `address`

    @property
    def host(self) -> str:
        """The host in the address."""
        return _host_and_port(self.address)[0]

    @property
    def port(self) -> int:
        """The port in the address."""
        return _host_and_port(self.address)[1]

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach the address."""
        return names_loopback(self.host)


@dataclasses.dataclass(frozen=True, slots=True)
class Meeting:
    """Facts that a process knows when all have connected."""

    channel: ControlChannel  # it does not listen yet
    seed: int  # that of process 0
    bind_address: str | None = None  # where all reach process 0; None if not all by one address


def meet(rendezvous: Rendezvous, seed: int, timeout: float, heartbeat_timeout: int) -> Meeting:
    """Waits until all processes have connected.

    Args:
        rendezvous: address and numbers.
        seed: of this process; that of process 0 becomes the common one.
        timeout: in seconds.
        heartbeat_timeout: seconds after which a machine that does not answer counts as failed.

    Raises:
        ProcessError: if processes are missing, do not know the secret, or contradict each other.
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
    arrived: list[Newcomer] = []
    servers = _servers(rendezvous)
    listening = [server.getsockname()[0] for server in servers]
    with Entrance(servers, rendezvous.secret, rendezvous.count) as entrance:
        try:
            while len(members) < rendezvous.count:
                newcomer = entrance.next(deadline)
                arrived.append(newcomer)
                _check(rendezvous, members, newcomer.member, newcomer.count)
                members[newcomer.member.index] = newcomer.member
        except (TimeoutError, ProcessError) as error:
            if isinstance(error, TimeoutError):
                error = _missing(rendezvous, members, timeout, entrance.refused)
            for newcomer in arrived:
                newcomer.send(kind="error", text=str(error))
                newcomer.connection.close()
            raise error from None
    # The port is free again here, so that JAX can take it before the others look for it.
    everyone = [members[index] for index in range(rendezvous.count)]
    listed = [dataclasses.astuple(member) for member in everyone]
    for newcomer in arrived:
        newcomer.send(kind="welcome", members=listed, seed=seed)
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
    rendezvous: Rendezvous, listening: list[str], arrived: list[Newcomer]
) -> str | None:
    """Returns the address for JAX's coordinator, which listens on one or on all."""
    reached = {newcomer.local_address for newcomer in arrived}
    if len(reached) > 1 or any(ipaddress.ip_address(each).is_unspecified for each in listening):
        return None
    (address,) = reached
    port = _host_and_port(rendezvous.bind_address or rendezvous.address)[1]
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _missing(
    rendezvous: Rendezvous, members: dict[int, Member], timeout: float, refused: int
) -> ProcessError:
    missing = ", ".join(str(index) for index in range(rendezvous.count) if index not in members)
    strangers = (
        f" Connections that did not know the secret of the run: {refused}. If they were processes "
        f"of the run, set {VARIABLE} to the same value in every process."
    )
    return ProcessError(
        f"Of {rendezvous.count} processes, these did not come to {rendezvous.address} in "
        f"{timeout:g} seconds: {missing}. Check that they were started and can reach this machine, "
        f"or set a larger initialization_timeout.{strangers * bool(refused)}"
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
    connection, handshake = _accepted(rendezvous, deadline, timeout)
    try:
        sealed = _next_message(rendezvous, connection, deadline, timeout)
        if sealed is None:
            raise _not_process_0(rendezvous, "process 0 closed the connection")
        answer = _opened(rendezvous, handshake, sealed)
        if answer["kind"] == "error":
            raise ProcessError(answer["text"])
    except ProcessError:
        connection.close()
        raise
    members = [Member(*member) for member in answer["members"]]
    return Meeting(ControlChannel(rendezvous.index, members, {0: connection}), answer["seed"])


def _accepted(
    rendezvous: Rendezvous, deadline: float, timeout: float
) -> tuple[Connection, Handshake]:
    """Connects to process 0 until it accepts this process."""
    for attempt in range(_ATTEMPTS):
        connection = _connect(rendezvous, deadline, timeout)
        try:
            handshake = _introduce(rendezvous, connection, deadline, timeout)
        except ProcessError:
            connection.close()
            raise
        if handshake is not None:
            return connection, handshake
        connection.close()
        time.sleep(_RETRY_SECONDS * min(2**attempt, 8))
    raise _not_process_0(rendezvous, f"it closed {_ATTEMPTS} connections")


def _introduce(
    rendezvous: Rendezvous, connection: Connection, deadline: float, timeout: float
) -> Handshake | None:
    """Sends the hello of this process; returns None if process 0 has dropped the connection."""
    challenge = _next_message(rendezvous, connection, deadline, timeout)
    if challenge is None:
        return None
    if challenge["kind"] != "challenge" or not isinstance(challenge.get("challenge"), str):
        raise _not_process_0(rendezvous, _OTHER)
    handshake, answer = Handshake(rendezvous.secret, challenge["challenge"]), new_secret()
    member = dataclasses.astuple(Member.this(rendezvous.index))
    connection.send(
        **handshake.seal(kind="hello", member=member, count=rendezvous.count, challenge=answer)
    )
    handshake = handshake.with_answer(answer)
    reply = _next_message(rendezvous, connection, deadline, timeout)
    if reply is None:
        return None
    _opened(rendezvous, handshake, reply)
    return handshake


def _opened(rendezvous: Rendezvous, handshake: Handshake, sealed: ProcessMessage) -> dict[str, Any]:
    """Returns the message of process 0 that has a right proof."""
    message = handshake.open(sealed)
    if message is not None:
        return message
    if sealed["kind"] not in ("refused", "sealed"):
        raise _not_process_0(rendezvous, _OTHER)
    raise ProcessError(
        f"Process {rendezvous.index} does not know the secret of the run at {rendezvous.address}: "
        f"it has {'another one' if rendezvous.secret else 'none'}. Set {VARIABLE} to the same "
        "value in every process, or coordinator_address to where process 0 of its own run is."
    )


def _next_message(
    rendezvous: Rendezvous, connection: Connection, deadline: float, timeout: float
) -> ProcessMessage | None:
    try:
        return connection.first(max(deadline - time.monotonic(), 0) + _PATIENCE_SECONDS)
    except TimeoutError as error:
        raise ProcessError(
            f"Process 0 at {rendezvous.address} did not answer in {timeout:g} seconds. Look at its "
            "output, or set coordinator_address to where it is."
        ) from error
    except ValueError as error:  # not a message
        raise _not_process_0(rendezvous, _OTHER) from error


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
