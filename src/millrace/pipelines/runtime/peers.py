"""Arrays sent from one process to another, without a collective operation.

    process 0                          process 1
    server  <- send(0 -> 1, arrays)    receive(0 -> 1, specs) -> connection to process 0
      number 0, 1, 2, ...                number 0, 1, 2, ...     counted for each pair of devices

The address of each server is in the store of `jax.distributed`. Sender and receiver both count the
messages between two devices, so that both have the same number for a message.
"""

import functools
import itertools
import socket
from collections.abc import Iterator, Sequence
from typing import Protocol

import jax

from millrace._compat.jax_processes import key_value_store
from millrace._compat.jax_transfer import coordinator_address, start_transfer_server
from millrace.errors import ProcessError

_ADDRESS_SECONDS = 300  # for all processes of an edge to start their first pipeline
_MESSAGES = 40  # bits of a number that count messages; the others are the pair of devices


class _Connection(Protocol):
    """A connection of JAX's transfer server."""

    def pull(self, number: int, specs: Sequence[jax.ShapeDtypeStruct]) -> list[jax.Array]: ...


class Peers:
    """Sends arrays to other processes and receives theirs. One for a process: `peers()`."""

    def __init__(self) -> None:
        device = jax.local_devices()[0]
        self._server = start_transfer_server(device, _own_host())
        self._store = key_value_store()
        self._connections: dict[int, _Connection] = {}
        self._indices = {device: index for index, device in enumerate(jax.devices())}
        self._counters: dict[tuple[int, int], Iterator[int]] = {}
        key = _address_key(jax.process_index())
        self._store.key_value_set(key, self._server.address())

    def numbers(self, source: jax.Device, target: jax.Device) -> Iterator[int]:
        """Returns the numbers of the messages from one device to another.

        They continue across pipelines, so that another pipeline on the same devices does not use a
        number twice.
        """
        pair = self._indices[source], self._indices[target]
        if pair not in self._counters:
            first = (pair[0] * len(self._indices) + pair[1]) << _MESSAGES
            self._counters[pair] = itertools.count(first)
        return self._counters[pair]

    def send(self, number: int, arrays: Sequence[jax.Array]) -> None:
        """Holds arrays until their receiver has fetched them. Does not wait."""
        self._server.await_pull(number, list(arrays))

    def receive(
        self, process: int, number: int, specs: Sequence[jax.ShapeDtypeStruct]
    ) -> list[jax.Array]:
        """Returns arrays that another process sends, before they have arrived. Does not wait."""
        connection = self._connections.get(process) or self.connect(process)
        return connection.pull(number, specs)

    def connect(self, process: int) -> _Connection:
        """Connects to a process, and waits until its server runs.

        Raises:
            ProcessError: if its server does not start in time.
        """
        try:
            address = self._store.blocking_key_value_get(
                _address_key(process), _ADDRESS_SECONDS * 1000
            )
        except Exception as error:  # the public base of JAX's errors; a timeout has no class
            raise ProcessError(
                f"Process {jax.process_index()} waited {_ADDRESS_SECONDS} seconds for process "
                f"{process}, which has a stage next to one of its own and runs no pipeline. Run "
                "the same script in every process: fit, evaluate and predict must be called by "
                "all of them."
            ) from error
        connection = self._connections[process] = self._server.connect(address)
        return connection


@functools.cache
def peers() -> Peers:
    """Returns the connections of this process, whose server starts with the first call."""
    return Peers()


def _address_key(process: int) -> str:
    return f"millrace/peers/{process}"


def _own_host() -> str:
    """Returns the address of this machine on the network on which the processes have met."""
    host = coordinator_address().rpartition(":")[0].strip("[]")
    family, _, _, _, address = socket.getaddrinfo(host, 1, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)  # asks for the route; a datagram socket sends nothing
        own = probe.getsockname()[0]
    return f"[{own}]" if family == socket.AF_INET6 else own
