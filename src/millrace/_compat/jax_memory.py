"""Private JAX: the memory spaces of devices.

    device        what programs compute in
    pinned_host   memory of the host that a device copies from and to by itself

The memory of a value is part of its type: an operation on one value of each space is an error when
it is traced, on every backend. JAX takes that type from a `NamedSharding` only; with a sharding of
one device the type says "device", whatever the memory is.
"""

import functools
import logging
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

from millrace._compat.jax_targets import is_described
from millrace.base.targets.target import target_of

logger = logging.getLogger("millrace")
DEVICE, HOST = "device", "pinned_host"
Space: Any = jax.memory.Space  # of a value in a program


def host_memory(device: jax.Device) -> str | None:
    """Returns the kind of host memory to which values can be offloaded; None where there is none.

    Args:
        device: of this process.
    """
    return HOST if is_another_memory(device) else None


def is_another_memory(device: jax.Device) -> bool:
    """Whether the device computes in another memory than the host's, and can use both.

    XLA's CPU backend lists all kinds, enforces them in types, and keeps everything in one memory.
    """
    return device.platform != "cpu" and _moves_there_and_back(device)


def on_host(sharding: Sharding, mesh: Mesh) -> NamedSharding:
    """Returns the same sharding in host memory.

    Args:
        sharding: of device memory.
        mesh: of the same devices, for a sharding of one that has no mesh.
    """
    if not isinstance(sharding, NamedSharding):
        sharding = NamedSharding(mesh, PartitionSpec())
    return sharding.with_memory_kind(HOST)


def on_device(layout: "Sharding | jax.memory.Space") -> "Sharding | jax.memory.Space":
    """Returns the same sharding, or the space that stands for one, in device memory."""
    return Space.Device if layout is Space.Host else layout.with_memory_kind(DEVICE)


def is_on_host(layout: object) -> bool:
    """Whether a sharding, or a space that stands for one, is of host memory."""
    return layout is Space.Host or getattr(layout, "memory_kind", None) == HOST


def in_device_memory(value: jax.Array) -> jax.Array:
    """Returns an array, or its copy on the same devices where it is in host memory."""
    if not is_on_host(getattr(value, "sharding", None)):
        return value
    sharding = value.sharding
    if len(sharding.device_set) == 1:  # as all values of one device, without a mesh
        return jax.device_put(value, SingleDeviceSharding(next(iter(sharding.device_set))))
    return jax.device_put(value, sharding.with_memory_kind(DEVICE))


@functools.cache
def _moves_there_and_back(device: jax.Device) -> bool:
    """Whether a program of the device takes a value from host memory, and leaves one there."""
    if HOST not in {memory.kind for memory in device.addressable_memories()}:
        return False
    if is_described(device):  # a TPU: of a GPU that is described JAX knows no memory spaces
        return True
    host = NamedSharding(Mesh(np.array([device]), ("probe",)), PartitionSpec(), memory_kind=HOST)

    def probe(value: jax.Array) -> jax.Array:
        return jax.device_put(jax.device_put(value, on_device(host)) + 1, host)

    try:
        value = jax.device_put(np.zeros((64,), np.float32), host)
        result = jax.jit(probe, out_shardings=host)(value)
        return is_on_host(result.sharding) and bool((np.asarray(result) == 1).all())
    except (RuntimeError, ValueError, NotImplementedError) as error:
        logger.debug("%s lists %s and cannot use it: %s", device, HOST, error)
        return False


def memory_limit(device: jax.Device) -> int | None:
    """Returns the bytes that JAX may use of a device's memory; None where that is not known."""
    if (kind := target_of(device)) is not None:
        return kind.usable
    statistics = device.memory_stats() if device.process_index == jax.process_index() else None
    return (statistics or {}).get("bytes_limit")


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether JAX raised `error` because a device has no memory left."""
    return isinstance(error, jax.errors.JaxRuntimeError) and (
        "RESOURCE_EXHAUSTED" in str(error) or "Out of memory" in str(error)
    )
