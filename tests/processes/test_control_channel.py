import contextlib
import os
import socket

import pytest

from millrace.run.processes.agreement import Member
from millrace.run.processes.control_channel import DIED, Connection, ControlChannel

SECONDS = 30  # bounds from above, for a machine that is busy


def pair():
    """The two ends of a connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return socket.create_connection(server.getsockname()), server.accept()[0]


@pytest.fixture
def lines():
    """The lines of three processes that have met."""
    members = [Member(index, "node", 100 + index) for index in range(3)]
    ends = {index: [Connection(one) for one in pair()] for index in (1, 2)}
    made = [ControlChannel(0, members, {index: ends[index][0] for index in ends})]
    made += [ControlChannel(index, members, {0: ends[index][1]}) for index in ends]
    for line in made:
        line.start()
    yield made
    for line in made:
        line.leave()
    for line in made:
        for connection in line.connections.values():
            with contextlib.suppress(OSError):
                connection.socket.shutdown(socket.SHUT_RDWR)
    for line in made:
        assert line.alone.wait(SECONDS)
        line.close()


@pytest.mark.parametrize("index", [0, 1])
def test_all_hear_of_a_failure(lines, index):
    lines[index].announce("ValueError: no")
    for line in lines:
        assert line.failed.wait(SECONDS)
        assert (
            str(line.first) == f"process {index} (host node, pid 10{index}) failed: ValueError: no"
        )


def test_only_the_first_failure_counts(lines):
    lines[2].announce("first")
    lines[1].announce("second")  # returns when process 0 has answered
    assert [line.first.process.index for line in lines] == [2, 2, 2]


def test_a_death_is_noticed_without_a_timeout(lines):
    lines[1].connections[0].socket.shutdown(socket.SHUT_RDWR)
    for line in (lines[0], lines[2]):
        assert line.failed.wait(SECONDS)
        assert line.first.process.index == 1
        assert line.first.text == DIED


def test_the_death_of_process_0_is_noticed():
    mine, other = pair()
    line = ControlChannel(
        1, [Member(index, "node", 100 + index) for index in range(2)], {0: Connection(mine)}
    )
    line.start()
    other.close()
    assert line.alone.wait(SECONDS)
    assert str(line.first) == f"process 0 (host node, pid 100) failed: {DIED}"
    line.close()


def test_who_has_said_bye_may_go(lines):
    for line in lines:
        line.leave()
    for line in lines[1:]:
        line.connections[0].socket.shutdown(socket.SHUT_RDWR)
    for line in lines:
        assert line.alone.wait(SECONDS)
        assert line.first is None


def test_a_failure_that_nobody_can_be_told_of_is_kept():
    mine, other = pair()
    connection = Connection(mine)
    connection.close()
    other.close()
    members = [Member(index, "node", os.getpid()) for index in range(2)]
    line = ControlChannel(1, members, {0: connection})
    line.announce("alone")
    assert line.first.text == "alone"


def test_messages_arrive_in_pieces():
    sender, receiver = pair()
    connection = Connection(receiver)
    sender.sendall(b'{"kind": "wel')
    with pytest.raises(TimeoutError):
        connection.first(0.01)
    sender.sendall(b'come"}\n{"kind": "bye"}\n{"kin')
    assert connection.first(SECONDS) == {"kind": "welcome"}
    assert connection.early() == [{"kind": "bye"}]
    sender.sendall(b'd": "bye"}\n')
    assert connection.messages() == [{"kind": "bye"}]
    sender.sendall(b"GET / HTTP/1.1\r\n")
    with pytest.raises(ValueError, match="Expecting value"):
        connection.first(SECONDS)
    sender.sendall(b"[" * 5000 + b"\n")
    with pytest.raises(ValueError, match=r"nested too deeply|Expecting value"):  # from 3.13 on
        connection.first(SECONDS)
    sender.close()
    assert connection.messages() is None
    connection.close()
