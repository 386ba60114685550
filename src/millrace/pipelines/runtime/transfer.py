"""Moving arrays between the devices of stages, also in other processes.

    source  d0 ──────> e0  target      replica 0: within a process, a copy
            d1 ══════> e1              replica 1: to another process, see links.py

Every process that has a device of either stage makes the edge, and calls `move` as often and in the
same order as the others. No call waits for the other processes or for the arrays.

Copies    within this process
Edge      between processes (edge.py); those that have a device of either group call it together
ToAll     from one group to every process that has no device of it
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
from jax.sharding import Sharding

from millrace._compat.jax_arrays import DeviceCopies
from millrace._compat.jax_memory import in_device_memory
from millrace._compat.jax_transfer import Assembly, shards
from millrace.devices import DeviceGroup
from millrace.pipelines.programs.builder import StageBuilder
from millrace.pipelines.runtime.links import Specs, link
from millrace.processes.agreement import own_copy


class Edge:
    """Moves arrays from one device group to another."""

    def __init__(self, source: DeviceGroup, target: DeviceGroup, transport: str | None = None):
        """Makes an edge. Where processes send to each other, it waits until the others do so, too.

        Args:
            source: devices that arrays come from, one for each replica.
            target: devices that they go to, as many.
            transport: between processes, "pull" or "permute"; None for the platform's.

        Raises:
            ProcessError: if a process of the edge does not come.
        """
        here = jax.process_index()
        pairs = list(enumerate(zip(source.devices, target.devices, strict=True)))
        self._sharding: Sharding = target.split(0)
        self._assemblies: dict[Sharding, Assembly] = {}
        self._is_split = target.replicas > 1
        self._replicas = target.replicas
        sends = {replica: place for place, replica in enumerate(source.local)}
        # Replicas of which this process has an end, each with its place among the local shards.
        self._links = [
            (sends.get(replica), link(start, end, transport), end.process_index == here)
            for replica, (start, end) in pairs
            if here in (start.process_index, end.process_index)
        ]
        self._receives = any(arrives for _, _, arrives in self._links)

    def move(self, arrays: Sequence[jax.Array] | None, specs: Specs) -> list[jax.Array] | None:
        """Starts the move of some arrays.

        Args:
            arrays: on the source; None in a process that has no device of it. With several
                replicas each is `[replicas, ...]` and lies with its first axis over the devices.
                They must not be donated before they have arrived, that is before something that
                was computed of them comes back.
            specs: shapes and types of the arrays, the same in all processes; with several
                replicas of the whole `[replicas, ...]`, unless a spec has another sharding over
                the target: then each device's part goes to the device of the same replica.

        Returns:
            The same on the target, or None in a process that has no device of it.
        """
        if not self._is_split:
            for _, one, _ in self._links:
                return one.move(arrays, specs)
            return None
        shardings = [spec.sharding or self._sharding for spec in specs]
        parts = [
            jax.ShapeDtypeStruct(sharding.shard_shape(spec.shape), spec.dtype)
            for spec, sharding in zip(specs, shardings, strict=True)
        ]
        local = [shards(array) for array in arrays or ()]
        arrived: list[list[jax.Array]] = []
        for place, one, arrives in self._links:
            mine = None if place is None else [each[place] for each in local]
            moved = one.move(mine, parts)
            if arrives and moved is not None:
                arrived.append(moved)
        if not self._receives:
            return None
        by_array = zip(*arrived, strict=True)
        return [
            self._assembly(sharding)(spec, each)
            for spec, sharding, each in zip(specs, shardings, by_array, strict=True)
        ]

    def _assembly(self, sharding: Sharding) -> Assembly:
        if sharding not in self._assemblies:
            self._assemblies[sharding] = Assembly(sharding)
        return self._assemblies[sharding]


Specs = Sequence[jax.ShapeDtypeStruct]
# Takes arrays of a group, None where another process has it; returns them on another group, None
# where another process has that.
MoveArrays = Callable[[list[Any] | None, Specs], list[Any] | None]


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


def make_carry(source: DeviceGroup, target: DeviceGroup) -> MoveArrays:
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


class Sent(NamedTuple):
    """A value that goes along a route."""

    place: int  # among what the stage made
    number: int  # of the value
    stages: tuple[int, ...]  # that take it there


class Route(NamedTuple):
    """The way to one group."""

    move: MoveArrays
    sent: list[Sent]
    specs: Specs

    def carry(self, made: list[Any] | None) -> Iterator[tuple[Any, int, tuple[int, ...]]]:
        """Moves values, and yields those that arrive here: array, number, stages.

        Args:
            made: by the stage; None where that is in another process.
        """
        given = None if made is None else [made[each.place] for each in self.sent]
        arrived = self.move(given, self.specs)
        if arrived is not None:
            for array, (_, number, stages) in zip(arrived, self.sent, strict=True):
                yield array, number, stages


def routes(
    sent: Sequence[tuple[int, int, tuple[int, ...]]],
    builder: StageBuilder,
    index: int,
    groups: Sequence[DeviceGroup],
) -> list[Route]:
    """Returns the routes of which this process has an end, in an order that all processes share.

    Args:
        sent: (place, number, stages that take it) of each value.
        builder: of the stages, for the values' shapes.
        index: of the stage that makes them.
        groups: of each stage.
    """
    by_group: dict[DeviceGroup, list[Sent]] = {}
    for place, number, stages in sent:
        for group in dict.fromkeys(groups[stage] for stage in stages):
            there = tuple(stage for stage in stages if groups[stage] == group)
            by_group.setdefault(group, []).append(Sent(place, number, there))
    found = []
    for group, values in by_group.items():
        if not takes_part(groups[index], group):
            continue
        lead = (group.replicas,) if group.replicas > 1 else ()
        shapes = [builder.stages.split.values[each.number] for each in values]
        specs = [jax.ShapeDtypeStruct((*lead, *shape.shape), shape.dtype) for shape in shapes]
        found.append(Route(make_carry(groups[index], group), values, specs))
    return found
