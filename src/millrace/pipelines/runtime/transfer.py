"""Moving arrays between the devices of stages. Nothing waits, and nothing goes through the host.

Copies    within this process
Edge      between processes (edge.py); those that have a device of either group call it together
ToAll     from one group to every process that has no device of it
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax

from millrace._compat.jax import DeviceCopies
from millrace._compat.jax_spaces import in_device_memory
from millrace.devices import DeviceGroup
from millrace.pipelines.runtime.edge import Edge
from millrace.processes.gather import own_copy

Specs = Sequence[jax.ShapeDtypeStruct]
# Takes arrays of a group, None where another process has it; returns them on another group, None
# where another process has that.
Carry = Callable[[list[Any] | None, Specs], list[Any] | None]


def on_device(value: Any, device: jax.Device) -> Any:
    """Returns an array on `device`: itself if it is there, else a copy that has been started."""
    value = in_device_memory(value)
    return value if value.devices() == {device} else jax.device_put(value, device)


class Copies:
    """Starts copies to one group; with replicas, of arrays `[replicas, ...]`."""

    def __init__(self, group: DeviceGroup):
        self._copies = DeviceCopies(group.split(0), group.local)

    def batch(self, leaves: Sequence[Any]) -> list[Any]:
        """Copies leaves of a batch, which are in host memory."""
        return [self._copies.from_host(leaf) for leaf in leaves]

    def values(self, arrays: list[Any]) -> list[Any]:
        """Copies what another stage made."""
        return self._copies.from_device(arrays)


def takes_part(*groups: DeviceGroup) -> bool:
    """Whether this process has a device of any of the groups."""
    return any(group.local for group in groups)


def make_carry(source: DeviceGroup, target: DeviceGroup) -> Carry:
    """Returns what carries arrays from one group to another, of which this process has a device."""
    if source == target:
        return lambda arrays, specs: arrays
    if source.is_local and target.is_local:
        copies = Copies(target)
        return lambda arrays, specs: copies.values(arrays or [])
    return Edge(source, target).move


class ToAll:
    """Gives what is the same on all devices of a group to the processes that have none of them."""

    def __init__(self, source: DeviceGroup, groups: Sequence[DeviceGroup]):
        """Makes the edges; every process does so at the same point.

        Args:
            source: whose values everyone gets.
            groups: of all stages; each process gets the values on its first device of these.
        """
        here = jax.process_index()
        first = source.devices[0]
        self._device = first
        having = {device.process_index for device in source.devices}
        targets: dict[int, jax.Device] = {}
        for device in (device for group in groups for device in group.devices):
            if device.process_index not in having:
                targets.setdefault(device.process_index, device)
        self._has = here in having
        self._edges = [
            Edge(DeviceGroup((first,)), DeviceGroup((device,)))
            for process, device in sorted(targets.items())
            if here in (first.process_index, process)
        ]

    def share(self, arrays: list[Any] | None, specs: Specs) -> list[Any]:
        """Returns the values in this process.

        Args:
            arrays: in the processes that have the group.
            specs: of the arrays, in all processes.
        """
        own = None if arrays is None else list(map(own_copy, arrays))
        for edge in self._edges:
            moved = edge.move(own, specs)
            own = moved if moved is not None else own
        return own or []
