import concurrent.futures
import socket

import pytest

from millrace.errors import ProcessError
from millrace.processes.bootstrap import Rendezvous, meet

SECONDS = 30


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
    for line, _ in results:
        line.close()


def test_all_meet_and_get_the_seed_of_process_0():
    address = free_address()
    results = outcomes(*(Rendezvous(address, index, 3) for index in (2, 0, 1)))
    assert [seed for _, seed in results] == [7, 7, 7]
    assert [[member.index for member in line.members] for line, _ in results] == [[0, 1, 2]] * 3
    # The port is free for JAX while the connections stay.
    socket.create_server(("127.0.0.1", int(address.rpartition(":")[2]))).close()
    close(results)


def test_on_all_interfaces_when_the_address_is_no_local_one(monkeypatch):
    address = free_address()
    monkeypatch.setattr(Rendezvous, "is_local", property(lambda self: False))
    close(outcomes(Rendezvous(address, 0, 2), Rendezvous(address, 1, 2)))


def test_parts_of_an_address():
    assert (Rendezvous("[::1]:80", 0, 2).host, Rendezvous("node1:80", 0, 2).port) == ("::1", 80)
    assert Rendezvous("127.0.0.2:80", 0, 2).is_local
    assert not Rendezvous("node1:80", 0, 2).is_local


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


def test_strangers_at_the_port_of_process_0_are_ignored():
    address = free_address()
    host, port = address.split(":")
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        first = pool.submit(meet, Rendezvous(address, 0, 2), 7, SECONDS, 30)
        while True:
            try:
                with socket.create_connection((host, int(port))) as stranger:
                    stranger.sendall(b"GET / HTTP/1.1\n\n")
                break
            except ConnectionRefusedError:
                continue
        second = pool.submit(meet, Rendezvous(address, 1, 2), 8, SECONDS, 30)
        close([first.result(), second.result()])


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"HTTP/1.1 400 Bad Request\n", "something other than process 0 answers."),
        (b"", "process 0 closed the connection."),
        (None, "did not answer in 0.2 seconds"),
    ],
)
def test_a_stranger_in_the_place_of_process_0(answer, message, monkeypatch):
    monkeypatch.setattr("millrace.processes.bootstrap._HELLO_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        place = Rendezvous(f"127.0.0.1:{server.getsockname()[1]}", 1, 2)
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(meet, place, 0, 0.2, 30)
            connection = server.accept()[0]
            if answer is not None:
                connection.recv(1000)
                connection.sendall(answer)
                connection.close()
            error = waiting.exception()
            connection.close()
    assert isinstance(error, ProcessError)
    assert message in str(error)
    assert "coordinator_address" in str(error)
