"""Strangers at the port where the processes of a run meet: on this machine only."""

import collections
import concurrent.futures
import contextlib
import errno
import json
import logging
import socket
import threading
import time

import pytest

from millrace.processes import entrance
from millrace.processes.bootstrap import Rendezvous, meet
from millrace.processes.entrance import Entrance, listen, names_loopback

SECRET = "one secret of a run"
SECONDS = 30  # a bound from above, for a machine that is busy
# A stranger that is waited for would cost at least this.
QUICK_SECONDS = 4.0
GARBAGE = {
    "http": b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    "zeros": bytes(100_000),
    "no end": b"x" * 100_000,
    "nested": b"[" * 4000 + b"\n",
    "json": b'{"kind": "hello", "member": [1, "node", 1], "count": 2}\n',
    "no text": b'{"kind": "sealed", "proof": 1}\n',
    "sealed": b'{"kind": "sealed", "text": "{}", "proof": "00"}\n',
    "number": b"1\n",
    "line": b"\n",
    "half": b'{"kind": "sea',
    "nothing": b"",
}


@pytest.fixture
def address():
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"127.0.0.1:{free.getsockname()[1]}"


def connect(address):
    """Connects to process 0, which may not have started to listen."""
    host, _, port = address.rpartition(":")
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            return socket.create_connection((host, int(port)), SECONDS)
        except ConnectionRefusedError:
            assert time.monotonic() < deadline


@contextlib.contextmanager
def process_0(address, count=2):
    """Process 0 waits for the others; it must have met them at the end."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(meet, Rendezvous(address, 0, count, SECRET), 7, SECONDS, 30)
        yield
        meeting = waiting.result()
        assert meeting.seed == 7
        meeting.channel.close()


def join(address, index=1, count=2):
    """Process 1 comes; returns the seconds that it took."""
    begin = time.monotonic()
    meeting = meet(Rendezvous(address, index, count, SECRET), 8, SECONDS, 30)
    assert meeting.seed == 7
    meeting.channel.close()
    return time.monotonic() - begin


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage(address, name):
    with process_0(address), connect(address) as stranger:
        with contextlib.suppress(OSError):
            stranger.sendall(GARBAGE[name])
        assert join(address) < QUICK_SECONDS


def test_strangers_that_are_silent_or_slow_delay_nobody(address):
    with process_0(address, 3), contextlib.ExitStack() as strangers:
        slow = [strangers.enter_context(connect(address)) for _ in range(50)]
        for stranger in slow[::2]:
            stranger.sendall(b'{"ki')
        assert join_both(address) < QUICK_SECONDS


def join_both(address):
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        return max(pool.map(lambda index: join(address, index, 3), (1, 2)))


def test_a_thousand_connections(address):
    """Two processes join, one of them in the midst of the strangers."""
    with (
        process_0(address, 3),
        concurrent.futures.ThreadPoolExecutor(2) as pool,
        contextlib.ExitStack() as strangers,
    ):
        strange = pool.submit(flood, address, strangers)
        first = pool.submit(join, address, 1, 3)
        assert strange.result() < SECONDS / 2
        join(address, 2, 3)
        first.result()


def flood(address, strangers):
    """Makes 1,000 connections, of which the last 400 stay open; returns the seconds."""
    begin, last = time.monotonic(), collections.deque(maxlen=400)
    for number in range(1000):
        if len(last) == last.maxlen:
            last[0].close()
        last.append(strangers.enter_context(connect(address)))
        with contextlib.suppress(OSError):  # it was dropped already
            last[-1].sendall(b"x" * (number % 3))
    return time.monotonic() - begin


@pytest.fixture
def here():
    """An entrance without visitors, and its address."""
    server = socket.create_server(("127.0.0.1", 0))
    with Entrance([server], SECRET, 2) as here:
        yield here, server.getsockname()


def wait(here, seconds):
    with pytest.raises(TimeoutError):
        here.next(time.monotonic() + seconds)


def is_closed(client):
    """Whether process 0 has closed the connection, after its challenge."""
    client.settimeout(0.05)
    assert json.loads(client.makefile("rb").readline())["kind"] == "challenge"
    try:
        return client.recv(1000) == b""
    except TimeoutError:
        return False


def test_waiting_connections_are_limited_and_the_oldest_goes(here, monkeypatch):
    monkeypatch.setattr(entrance, "_MOST_WAITING", 3)
    with contextlib.ExitStack() as strangers:
        clients = []
        for _ in range(5):
            clients.append(strangers.enter_context(socket.create_connection(here[1])))
            wait(here[0], 0.02)
        assert list(map(is_closed, clients)) == [True, True, False, False, False]


def test_a_silent_connection_is_dropped(here, monkeypatch):
    monkeypatch.setattr(entrance, "_HELLO_SECONDS", 0.05)
    with socket.create_connection(here[1]) as client:
        wait(here[0], 0.2)
        assert is_closed(client)


def test_too_many_open_files(here, monkeypatch):
    with socket.create_connection(here[1]) as client, socket.create_connection(here[1]) as other:
        wait(here[0], 0.05)
        monkeypatch.setattr(socket.socket, "accept", no_more_files)
        with socket.create_connection(here[1]):
            with pytest.raises(OSError, match="Too many open files"):  # not of strangers
                wait(here[0], SECONDS)
            assert is_closed(client)
            assert is_closed(other)


def no_more_files(server):
    raise OSError(errno.EMFILE, "Too many open files")


class Recorder:
    """Forwards one connection to process 0, and keeps the bytes of both sides."""

    def __init__(self, address):
        self.server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.server.getsockname()[1]}"
        self.of_process_0, self.of_other = b"", b""
        self._thread = threading.Thread(target=self._forward, args=(address,))
        self._thread.start()

    def _forward(self, address):
        inside, outside = self.server.accept()[0], connect(address)
        with inside, outside:
            self.of_process_0 += forwarded(outside, inside)  # challenge
            self.of_other += forwarded(inside, outside)  # hello
            while self.of_process_0.count(b"\n") < 3:  # accepted, welcome
                self.of_process_0 += forwarded(outside, inside)

    def close(self):
        self._thread.join(SECONDS)
        self.server.close()


def forwarded(source, target):
    received = source.recv(65536)
    target.sendall(received)
    return received


@pytest.fixture
def recorded(address):
    """The bytes of a run of two processes, from process 0 and from the other."""
    recorder = Recorder(address)
    with process_0(address):
        join(recorder.address)
    recorder.close()
    assert recorder.of_other.endswith(b"\n")
    assert SECRET.encode() not in recorder.of_process_0 + recorder.of_other
    return recorder


def test_a_recorded_hello_is_refused(recorded, address, caplog):
    with process_0(address):
        with connect(address) as stranger:
            reader = stranger.makefile("rb")
            assert json.loads(reader.readline())["kind"] == "challenge"
            stranger.sendall(recorded.of_other)
            assert json.loads(reader.readline()) == {"kind": "refused"}
            assert reader.read() == b""
        join(address)
    assert caplog.text.count("does not know the secret of this run, and is refused") == 1


def test_a_recorded_process_0_is_refused(recorded):
    with socket.create_server(("127.0.0.1", 0)) as server:
        place = Rendezvous(f"127.0.0.1:{server.getsockname()[1]}", 1, 2, SECRET)
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(meet, place, 0, SECONDS, 30)
            with server.accept()[0] as impostor:
                impostor.sendall(recorded.of_process_0)
                assert "Process 1 does not know the secret of the run" in str(waiting.exception())


def test_strangers_are_named_once(address, caplog):
    with caplog.at_level(logging.WARNING, "millrace"), process_0(address):
        for _ in range(5):
            with connect(address) as stranger:
                stranger.sendall(b"\n")
                stranger.makefile("rb").read()
        join(address)
    assert caplog.text.count("refused") == 1


def test_on_the_given_address_only():
    (server,) = listen("127.0.0.2", 0)
    with server:
        port = server.getsockname()[1]
        assert server.getsockname()[0] == "127.0.0.2"
        socket.create_connection(("127.0.0.2", port)).close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
def test_on_all_interfaces_where_the_address_is_not_of_this_machine(host, caplog):
    with caplog.at_level(logging.INFO, "millrace"):
        (server,) = listen(host, 0)
    with server:
        socket.create_connection(("127.0.0.1", server.getsockname()[1])).close()
    known = host if host[0] == "1" else "not known"
    assert f"listens on all interfaces of this machine: {host!r} is {known} here" in caplog.text


def test_hosts_that_are_this_machine_for_everyone():
    assert all(map(names_loopback, ("localhost", "127.0.0.1", "127.9.9.9", "::1", "::1%lo")))
    assert not any(map(names_loopback, ("node1", "10.0.0.1", "fe80::1%eth0", "")))
