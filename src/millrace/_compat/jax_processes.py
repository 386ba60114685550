"""Private JAX: processes, and transfers between them.

The public calls start the devices, after which neither their number nor that of the processes can
be chosen.

    sender                                   receiver
    server.await_pull(number, arrays)        connection.pull(number, specs) -> arrays

Neither call waits, in whichever order they come; arrays may still be being computed. Checked on jax
0.10.0, 0.10.2 and 0.12.0.1.
"""

import contextlib
import gc
import os
import socket
import stat
import weakref
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax._src import clusters, distributed, xla_bridge
from jax._src.array import ArrayImpl
from jax._src.core import ShapedArray
from jax.extend.backend import clear_backends


def backends_are_initialized() -> bool:
    """Whether JAX has started its devices, after which their number is fixed.

    No public call tells without starting them.
    """
    return xla_bridge.backends_are_initialized()


def end_unused_backends() -> bool:
    """Ends JAX's CPU devices, which start anew at their next use, if nothing refers to them.

    JAX itself tells only whether arrays do. Whether anything else does, such as a device in a
    variable, is seen once JAX has let go of them; they are given back then.

    Returns:
        Whether they have ended.
    """
    if set(xla_bridge.backends()) != {"cpu"} or key_value_store() or jax.live_arrays():
        return False
    client = weakref.ref(jax.devices()[0].client)
    clear_backends()
    gc.collect()
    if (used := client()) is not None:
        xla_bridge._backends["cpu"] = xla_bridge._default_backend = used
    return used is None


def process_index() -> int:
    """Returns the number of this process among those that `jax.distributed` has connected.

    `jax.process_index()` asks the devices, and so starts them.
    """
    return distributed.global_state.process_id


def process_count() -> int:
    """Returns the number of processes that `jax.distributed` has connected; 1 without it."""
    return distributed.global_state.num_processes


def key_value_store() -> Any:
    """Returns the store that `jax.distributed` has for all processes; None without it.

    Its client has no public name. Of its methods, `key_value_set`, `key_value_dir_get`,
    `blocking_key_value_get` and `key_value_delete` are the same in all versions checked.
    """
    return distributed.global_state.client


def recognise_cluster(
    coordinator_address: str | None,
    num_processes: int | None,
    process_id: int | None,
    local_device_ids: int | Sequence[int] | None,
    timeout: int,
) -> tuple[str | None, int | None, int | None, int | Sequence[int] | None]:
    """Fills in the facts that Slurm, MPI, Kubernetes and other clusters give about this process.

    `jax.distributed.initialize` does this, too, but connects at once; millrace needs the address
    before that.
    """
    address = coordinator_address or os.environ.get("JAX_COORDINATOR_ADDRESS")
    detect: Any = clusters.ClusterEnv.auto_detect_unset_distributed_params
    return detect(address, num_processes, process_id, local_device_ids, None, timeout)


transfer: Any
try:
    from jax.experimental import transfer
except (ImportError, AttributeError):  # a jaxlib that was built without it
    transfer = None


def has_transfer_server() -> bool:
    """Whether this jaxlib can send arrays to other processes outside of programs."""
    return transfer is not None


def start_transfer_server(device: jax.Device, host: str) -> Any:  # a class of jaxlib
    """Starts the server of this process, on a free port that it chooses.

    Args:
        device: any of the platform whose arrays are sent.
        host: the address by which other processes reach this machine.
    """
    # Not `use_raw_buffers`: it takes a fifth off the time of a small transfer, but sends garbage
    # where the sender has donated the array meanwhile, which is an error without it.
    return transfer.start_transfer_server(device.client, f"{host}:0", [f"{host}:0"])


def end_connections(server: Any) -> None:
    """Ends the connections that other processes have made to the server of this one.

    What they still wait for becomes an error, as if this process had died; they may connect again.
    The server has no call for it, so its sockets are found by its port, on Linux.
    """
    port = int(server.address().rpartition(":")[2])
    folder = "/proc/self/fd"
    for number in map(int, os.listdir(folder) if os.path.isdir(folder) else ()):
        with contextlib.suppress(OSError):  # it has been closed, or is not connected
            if stat.S_ISSOCK(os.fstat(number).st_mode):
                with socket.socket(fileno=os.dup(number)) as found:
                    if found.getpeername() and _port(found) == port:
                        found.shutdown(socket.SHUT_RDWR)


def _port(found: socket.socket) -> int | None:
    is_of_network = found.family in (socket.AF_INET, socket.AF_INET6)
    return found.getsockname()[1] if is_of_network else None


def coordinator_address() -> str:
    """Returns the address of `jax.distributed`'s coordinator, such as "node1:1234"."""
    return distributed.global_state.coordinator_address or "127.0.0.1:0"


def shards(array: jax.Array) -> list[jax.Array]:
    """Returns this process's shards, in the order of the sharding's devices.

    `addressable_shards` makes an object for each: 11 us for two, and this 7.
    """
    private: Any = array
    return private._arrays


class Assembly:
    """Joins the shards of this process to one array.

    `jax.make_array_from_single_device_arrays` checks them anew in every call: 29 us, and this 8.
    """

    def __init__(self, sharding: jax.sharding.Sharding):
        self._sharding = sharding
        self._avals: dict[tuple[tuple[int, ...], np.dtype], ShapedArray] = {}

    def __call__(self, spec: jax.ShapeDtypeStruct, parts: Sequence[jax.Array]) -> jax.Array:
        """Returns the array; its shards are in the order of the sharding's devices."""
        key = (spec.shape, spec.dtype)
        aval = self._avals.get(key)
        if aval is None:
            aval = self._avals[key] = ShapedArray(*key)
        arrays: list[Any] = list(parts)
        return ArrayImpl(aval, self._sharding, arrays, committed=True, _skip_checks=True)
