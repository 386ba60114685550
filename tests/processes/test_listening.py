import logging
import socket

import pytest

from millrace.run.processes.listening import listen, names_loopback


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
