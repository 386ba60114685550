"""The sockets at which process 0 waits for the others.

It may be known to them by a name that has another address here, or none: then it listens on all
interfaces of its machine.
"""

import errno
import ipaddress
import logging
import socket

_LOGGER = logging.getLogger("millrace")
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


def free_port(host: str) -> int:
    """Returns a port of an address of this machine that nobody listens at."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as free:
        return free.getsockname()[1]


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
