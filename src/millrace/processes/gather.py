"""Values of several processes, in each of them.

the same on all devices    this process's copy
shared out over devices    gathered to each of them first, by all processes together
"""

from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from millrace._compat.jax import uncommitted
from millrace._compat.jax_spaces import in_device_memory


def own_copy(value: Any) -> Any:
    """Returns what this process has of a value that is the same on all devices of all processes."""
    if not isinstance(value, jax.Array) or value.is_fully_addressable:
        return value
    return uncommitted(value.addressable_data(0))


def gathered(value: Any) -> Any:
    """Returns a value of which every process that has a part calls this, whole and in this one."""
    if not isinstance(value, jax.Array) or value.is_fully_addressable:
        return value
    if not value.is_fully_replicated:
        value = in_device_memory(value)
        whole = NamedSharding(value.sharding.mesh, PartitionSpec())  # type: ignore[attr-defined]
        value = jax.jit(_same, out_shardings=whole)(value)
    return own_copy(value)


def on_one_device(value: Any) -> Any:
    """Returns an array that several devices share out as one on the first of them, uncommitted."""
    value = in_device_memory(value)
    sharding = getattr(value, "sharding", None)
    if sharding is None or len(sharding.device_set) == 1 or sharding.is_fully_replicated:
        return value
    return uncommitted(jax.device_put(value, sharding.mesh.devices.flat[0]))


def _same(value: Any) -> Any:
    return value
