import concurrent.futures
import logging
import socket
import time

import pytest

from millrace.errors import ProcessError
from millrace.run.processes.bootstrap import Rendezvous, meet

SECONDS = 30
GARBAGE = {
    "http": b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    "nested": b"[" * 4000 + b"\n",
    "number": b"1\n",
    "no member": b'{"kind": "hello", "count": 2, "run": ""}\n',
    "short": b'{"kind": "hello", "member": [1], "count": 2, "run": ""}\n',
    "half": b'{"kind": "hel',
    "nothing": b"",
}


def free_address(host="127.0.0.1"):
    with socket.socket() as free:
        free.bind((host, 0))
        return f"{host}:{free.getsockname()[1]}"


def outcomes(*places, timeout=SECONDS):
    """What `meet` returns or raises in each of several threads."""
    with concurrent.futures.ThreadPoolExecutor(len(places)) as pool:
        waiting = [pool.submit(meet, place, 7 + place.index, timeout, 30) for place in places]
        return [one.exception() or one.result() for one in waiting]


def close(results):
    for meeting in results:
        meeting.channel.close()


def test_all_meet_and_get_the_seed_of_process_0():
    address = free_address()
    results = outcomes(*(Rendezvous(address, index, 3) for index in (2, 0, 1)))
    assert [meeting.seed for meeting in results] == [7, 7, 7]
    members = [[member.index for member in meeting.channel.members] for meeting in results]
    assert members == [[0, 1, 2]] * 3
    # JAX's coordinator listens where this one did.
    assert [meeting.bind_address for meeting in results] == [None, address, None]
    # The port is free for JAX while the connections stay.
    socket.create_server(("127.0.0.1", int(address.rpartition(":")[2]))).close()
    close(results)


def test_on_all_interfaces_when_the_name_is_a_loopback_address_here_only(monkeypatch, caplog):
    address = free_address()
    monkeypatch.setattr("millrace.run.processes.listening.names_loopback", lambda host: False)
    with caplog.at_level(logging.INFO, "millrace"):
        results = outcomes(Rendezvous(address, 0, 2), Rendezvous(address, 1, 2))
    assert "listens on all interfaces of this machine: '127.0.0.1' is 127.0.0.1 here" in caplog.text
    assert "Set JAX_COORDINATOR_BIND_ADDRESS to" in caplog.text
    assert results[0].bind_address is None  # JAX listens on all, too
    close(results)


def test_where_the_environment_says():
    address = free_address()
    other = f"127.0.0.2:{address.rpartition(':')[2]}"
    places = [Rendezvous(other, index, 2, bind_address=other) for index in range(2)]
    results = outcomes(*places)
    assert results[0].bind_address == other
    close(results)


def test_parts_of_an_address():
    assert (Rendezvous("[::1]:80", 0, 2).host, Rendezvous("node1:80", 0, 2).port) == ("::1", 80)


def test_a_port_in_use_is_named():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ProcessError, match=rf"Port {port} .* in use.*another port, the same"):
            meet(Rendezvous(f"127.0.0.1:{port}", 0, 2), 0, 1, 30)


def test_those_who_did_not_come_are_named_everywhere():
    address = free_address()
    results = outcomes(Rendezvous(address, 0, 4), Rendezvous(address, 2, 4), timeout=1)
    for error in results:
        assert isinstance(error, ProcessError)
        assert "Of 4 processes, these did not come" in str(error)
        assert "in 1 seconds: 1, 3. Check" in str(error)
        assert "initialization_timeout" in str(error)


def test_process_0_not_there():
    with pytest.raises(ProcessError, match=r"Process 1 cannot reach process 0 at .*coordinator_ad"):
        meet(Rendezvous(free_address(), 1, 2), 0, 0.3, 30)


def test_different_numbers_of_processes():
    address = free_address()
    for error in outcomes(Rendezvous(address, 0, 2), Rendezvous(address, 1, 3)):
        assert isinstance(error, ProcessError)
        assert "has num_processes=2" in str(error)
        assert "num_processes=3. Set the same number in all" in str(error)


def test_a_process_that_is_there_twice():
    address = free_address()
    for error in outcomes(
        Rendezvous(address, 0, 3), Rendezvous(address, 1, 3), Rendezvous(address, 1, 3)
    ):
        assert isinstance(error, ProcessError)
        assert "two processes 1" in str(error)
        assert "process_id to another number from 0 to 2" in str(error)


@pytest.mark.parametrize("runs", [("a", "b"), ("a", ""), ("", "b")])
def test_a_process_of_another_run_is_told_so_and_the_run_waits_for_its_own(runs, caplog):
    address = free_address()
    places = [Rendezvous(address, index, 2, runs[index]) for index in range(2)]
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(meet, places[0], 7, SECONDS, 30)
        with pytest.raises(
            ProcessError, match=rf"process 1 .* another run .* at {address}\. Set c"
        ):
            meet(places[1], 8, SECONDS, 30)
        own = meet(Rendezvous(address, 1, 2, runs[0]), 8, SECONDS, 30)
        close([own, waiting.result()])
    assert own.seed == 7
    assert caplog.text.count("belongs to another run, and cannot join this one") == 1


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_does_not_keep_the_others_from_meeting(name, monkeypatch):
    monkeypatch.setattr("millrace.run.processes.bootstrap._HELLO_SECONDS", 0.2)
    address = free_address()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(meet, Rendezvous(address, 0, 2), 7, SECONDS, 30)
        with connect(address) as stranger:
            stranger.sendall(GARBAGE[name])
            own = meet(Rendezvous(address, 1, 2), 8, SECONDS, 30)
        close([own, waiting.result()])


def connect(address):
    """Connects to process 0, which may not have started to listen."""
    host, _, port = address.rpartition(":")
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            return socket.create_connection((host, int(port)), SECONDS)
        except ConnectionRefusedError:
            assert time.monotonic() < deadline


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"HTTP/1.1 400 Bad Request\n", "something other than process 0 answers."),
        (b'{"kind": "bye"}\n', "something other than process 0 answers."),
        (b"", "process 0 closed the connection."),
        (None, "did not answer in 0.2 seconds"),
    ],
)
def test_a_stranger_in_the_place_of_process_0(answer, message, monkeypatch):
    monkeypatch.setattr("millrace.run.processes.bootstrap._PATIENCE_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        place = Rendezvous(f"127.0.0.1:{server.getsockname()[1]}", 1, 2)
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(meet, place, 0, 0.2, 30)
            with server.accept()[0] as connection:
                if answer is not None:
                    connection.sendall(answer)
                    connection.shutdown(socket.SHUT_WR)
                error = waiting.exception()
    assert isinstance(error, ProcessError)
    assert message in str(error)
    assert "coordinator_address" in str(error)
