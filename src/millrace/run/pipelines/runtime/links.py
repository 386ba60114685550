"""The connections between device groups, also of other processes.

    process 0                          process 1
    server  <- send(0 -> 1, arrays)    receive(0 -> 1, specs) -> connection to process 0
      number 0, 1, 2, ...                number 0, 1, 2, ...     counted for each pair of devices

The address of each server is in the store of `jax.distributed`. Sender and receiver both count the
messages between two devices, so that both have the same number for a message.

A process whose update has failed ends the connections to its server: what others still wait for
from it becomes an error. So they leave the update, too. All that have left continue with new
numbers, which no message of the failed update has, and so do all after the next comparison of
processes.

    Here      both devices are in this process: a copy, or nothing
    Pull      the receiver fetches from the sender's server; either may be early
    Permute   both run one program with a collective permute, and wait for each other

`Pull` is for CPUs, `Permute` for accelerators, where the collective is NCCL's and waits without a
thread. On two pinned CPU cores, 128 KiB, loopback (medians, busy machine):

                one way    there and back    both at once    processor time of one way
    Pull         0.08 ms          0.56 ms         0.28 ms       0.08 ms
    Permute      0.30 ms          0.72 ms         0.64 ms       0.21 ms    (gloo)
    device_put   0.16 ms          0.78 ms         0.66 ms       0.13 ms    (across processes)

XLA's CPU client runs programs of one device in order, also those with a collective: programs queued
behind a permute wait for the other process. With each move right after its task, a 1F1B pipeline
of two stages takes 94 ms for an update with `Permute` and 78 ms with `Pull`, where each stage alone
takes 62 ms.
"""

import functools
import itertools
import socket
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from millrace._compat.jax_arrays import DeviceCopies
from millrace._compat.jax_processes import (
    Assembly,
    coordinator_address,
    end_connections,
    has_transfer_server,
    key_value_store,
    shards,
    start_transfer_server,
)
from millrace.errors import ProcessError
from millrace.run.pipelines.programs.split import Arrays
from millrace.run.processes.agreement import EXCHANGES
from millrace.run.processes.failure import describe

_ADDRESS_SECONDS = 300  # for all processes of an edge to start their first pipeline
# Bits of a number, from the last one: messages, failed updates since the last exchange of texts
# between all processes, exchanges; the others are the pair of devices.
_MESSAGE_BITS, _FAILURE_BITS, _EXCHANGE_BITS = 24, 4, 12


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
        self._exchanges = EXCHANGES.count  # when the counters began
        self._failures = 0  # since then
        key = _address_key(jax.process_index())
        self._store.key_value_set(key, self._server.address())

    def leave(self, error: Exception) -> None:
        """Ends the connections to this process after an update has failed.

        Raises:
            ProcessError: if another process has left the update before, which explains the error.
        """
        self._notice_exchanges()
        prefix = f"millrace/left/{self._exchanges}-{self._failures}/"
        first = self._store.key_value_dir_get(prefix)
        if not first:
            self._store.key_value_set(f"{prefix}{jax.process_index()}", describe(error))
        self._failures += 1
        self._counters.clear()
        self._connections.clear()
        end_connections(self._server)
        if first:
            key, why = first[0]
            raise ProcessError(
                f"Process {key.rpartition('/')[2]} has left an update of the pipeline: {why}"
            ) from error

    def number(self, source: jax.Device, target: jax.Device) -> int:
        """Returns the number of the next message from one device to another.

        They continue across pipelines, so that another pipeline on the same devices does not use a
        number twice.
        """
        self._notice_exchanges()
        pair = self._indices[source], self._indices[target]
        if pair not in self._counters:
            first = pair[0] * len(self._indices) + pair[1]
            first = (first << _EXCHANGE_BITS) + self._exchanges % (1 << _EXCHANGE_BITS)
            first = (first << _FAILURE_BITS) + self._failures % (1 << _FAILURE_BITS)
            self._counters[pair] = itertools.count(first << _MESSAGE_BITS)
        return next(self._counters[pair])

    def _notice_exchanges(self) -> None:
        """Begins new numbers if all processes have met since the last ones began."""
        if self._exchanges != EXCHANGES.count:
            self._exchanges, self._failures = EXCHANGES.count, 0
            self._counters.clear()

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


def leave(error: Exception) -> None:
    """Tells the processes that wait for this one that its update has failed: see `Peers.leave`."""
    if peers.cache_info().currsize:
        peers().leave(error)


def _own_host() -> str:
    """Returns the address of this machine on the network on which the processes have met."""
    host = coordinator_address().rpartition(":")[0].strip("[]")
    family, _, _, _, address = socket.getaddrinfo(host, 1, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)  # asks for the route; a datagram socket sends nothing
        own = probe.getsockname()[0]
    return f"[{own}]" if family == socket.AF_INET6 else own


Specs = Sequence[jax.ShapeDtypeStruct]
# XLA:CPU runs programs of fewer than 1000 operations in the calling thread: Python would wait for
# the other process.
_ENOUGH_OPERATIONS = 2048


_Key = tuple[tuple[tuple[int, ...], object], ...]  # shape and dtype of each array


class Link(Protocol):
    """Moves arrays of one replica."""

    def move(self, arrays: Arrays | None, specs: Specs) -> Arrays | None:
        """Returns the arrays on the target if this process has it, before they have arrived.

        Args:
            arrays: on the source; None where the source belongs to another process.
            specs: of the arrays.
        """
        ...


def link(source: jax.Device, target: jax.Device, transport: str | None = None) -> Link:
    """Returns the link for two devices, of which this process has at least one.

    Args:
        source: where arrays come from.
        target: where they go.
        transport: "pull" or "permute"; None: the faster one on the platform.
    """
    here = jax.process_index()
    if source.process_index == target.process_index == here:
        return Here(source, target)
    if source.platform == "cpu" and has_transfer_server() and transport in (None, "pull"):
        return Pull(source, target)
    return Permute(source, target)


class Here:
    """Copies within the process."""

    def __init__(self, source: jax.Device, target: jax.Device):
        copies = None if source == target else DeviceCopies(SingleDeviceSharding(target), (0,))
        self._copies = copies

    def move(self, arrays: list[jax.Array] | None, specs: Specs) -> list[jax.Array]:
        """Starts the copies. Returns the arrays themselves where source and target are one."""
        del specs
        sent = list(arrays or ())
        return sent if self._copies is None else self._copies.from_device(sent)


class _Message(NamedTuple):
    """The arrays of a list that `Pull` sends: a receiver would wait for ever for an empty array."""

    sent: list[int]  # their indices
    specs: list[jax.ShapeDtypeStruct]
    empty: list[jax.Array]  # the others, created by the receiver


class Pull:
    """Sends through the transfer server. A late receiver does not hold up the sender.

    Sent arrays must not be donated before the receiver has them: its arrays would become errors.
    """

    def __init__(self, source: jax.Device, target: jax.Device):
        self._peers = peers()
        self._ends = source, target
        self._process = source.process_index
        self._receives = target.process_index == jax.process_index()
        self._sharding = SingleDeviceSharding(target)
        self._messages: dict[_Key, _Message] = {}
        if self._receives:
            self._peers.connect(self._process)

    def move(self, arrays: list[jax.Array] | None, specs: Specs) -> list[jax.Array] | None:
        """Sends or receives, and waits for nothing."""
        key = tuple((spec.shape, spec.dtype) for spec in specs)
        message = self._messages.get(key)
        if message is None:
            message = self._messages[key] = self._message(specs)
        if not self._receives:
            if message.sent:
                full = arrays or ()
                self._peers.send(
                    self._peers.number(*self._ends), [full[index] for index in message.sent]
                )
            return None
        if not message.sent:
            return list(message.empty)
        number = self._peers.number(*self._ends)
        arrived = self._peers.receive(self._process, number, message.specs)
        if not message.empty:
            return arrived
        full, empty = iter(arrived), iter(message.empty)
        return [next(full if index in message.sent else empty) for index in range(len(specs))]

    def _message(self, specs: Specs) -> _Message:
        sent = [index for index, spec in enumerate(specs) if spec.size]
        placed = [
            jax.ShapeDtypeStruct(specs[index].shape, specs[index].dtype, sharding=self._sharding)
            for index in sent
        ]
        empty = []
        if self._receives:
            empty = [
                jax.device_put(np.zeros(spec.shape, spec.dtype), self._sharding)
                for spec in specs
                if not spec.size
            ]
        return _Message(sent, placed, empty)


class _Program(NamedTuple):
    """The program of a `Permute`, with the arguments of a receiver, which it does not read."""

    run: jax.stages.Compiled
    idle: list[jax.Array]


class Permute:
    """Runs a program on both devices, compiled once for each list of specs.

    Each process passes a different array as if both devices had the same one: so any shape works,
    scalars included, and the arrays need not be reshaped.
    """

    def __init__(self, source: jax.Device, target: jax.Device):
        self._mesh = Mesh(np.array([source, target]), ("end",))
        self._sharding = NamedSharding(self._mesh, PartitionSpec())
        self._assemble = Assembly(self._sharding)
        self._here = SingleDeviceSharding(
            target if target.process_index == jax.process_index() else source
        )
        self._receives = target.process_index == jax.process_index()
        self._programs: dict[_Key, _Program] = {}

    def move(self, arrays: list[jax.Array] | None, specs: Specs) -> list[jax.Array] | None:
        """Dispatches the program. The device waits for the other process, this call does not."""
        if not specs:
            return [] if self._receives else None
        key = tuple((spec.shape, spec.dtype) for spec in specs)
        if key not in self._programs:
            self._programs[key] = self._compile(specs)
        program, idle = self._programs[key]
        if not self._receives:
            pairs = zip(specs, arrays or (), strict=True)
            program(*(self._assemble(spec, shards(array)) for spec, array in pairs))
            return None
        moved = program(*idle)[: len(specs)]
        return [shards(array)[0] for array in moved]

    def _compile(self, specs: Specs) -> _Program:
        def body(*arrays: jax.Array) -> tuple[jax.Array, ...]:
            moved = [jax.lax.ppermute(array, "end", [(0, 1)]) for array in arrays]
            if self._mesh.devices.flat[0].platform != "cpu":
                return tuple(moved)
            end = jax.lax.axis_index("end")  # known when it runs, so that this is not left out
            return *moved, jnp.sum(jnp.maximum(jnp.arange(_ENOUGH_OPERATIONS), end))

        whole = PartitionSpec()
        mapped = jax.shard_map(
            body, mesh=self._mesh, in_specs=whole, out_specs=whole, check_vma=False
        )
        placed = [jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=self._sharding) for s in specs]
        program = jax.jit(mapped).lower(*placed).compile()
        # Arguments of the receiver, which the program does not read: created once.
        idle = []
        if self._receives:
            for spec in specs:
                zeros = jax.device_put(np.zeros(spec.shape, spec.dtype), self._here)
                idle.append(self._assemble(spec, shards(zeros)))
        return _Program(program, idle)
