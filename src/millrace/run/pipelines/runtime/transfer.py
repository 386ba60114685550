"""Moves of arrays between the devices of stages, also in other processes.

    source  d0 ──────> e0  target      replica 0: within a process, a copy
            d1 ══════> e1              replica 1: to another process, see links.py

Every process that has a device of either stage creates the edge, and calls `move` as often and in
the same order as the others. No call waits for the other processes or for the arrays.

copies_to   within this process
Edge        between processes; those that have a device of either group call it together
ToAll       from the group of a stage to every process that has no device of it
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import NamedTuple

import jax
from jax.sharding import Sharding

from millrace._compat.jax_arrays import DeviceCopies
from millrace._compat.jax_memory import in_device_memory
from millrace._compat.jax_processes import Assembly, shards
from millrace.base.devices import DeviceGroup
from millrace.base.pytrees import Array
from millrace.run.pipelines.programs.builder import StageBuilder
from millrace.run.pipelines.programs.split import Arrays
from millrace.run.pipelines.runtime.links import Specs, link
from millrace.run.processes.agreement import own_copy


class Edge:
    """Moves arrays from one device group to another."""

    def __init__(self, source: DeviceGroup, target: DeviceGroup, transport: str | None = None):
        """Creates the links. Where processes pull from each other, it waits for their servers.

        Args:
            source: devices that arrays come from, one for each replica.
            target: devices that they go to, as many.
            transport: between processes, "pull" or "permute"; None: the faster one.

        Raises:
            ProcessError: if the server of another process does not start in time.
        """
        here = jax.process_index()
        pairs = list(enumerate(zip(source.devices, target.devices, strict=True)))
        self._sharding: Sharding = target.split(0)
        self._assembly = cache(Assembly)  # by sharding
        self._is_split = target.replicas > 1
        sends = {replica: index for index, replica in enumerate(source.local)}
        # Replicas of which this process has an end, each with its index among the local shards.
        self._links = [
            (sends.get(replica), link(start, end, transport), end.process_index == here)
            for replica, (start, end) in pairs
            if here in (start.process_index, end.process_index)
        ]
        self._receives = any(arrives for _, _, arrives in self._links)

    def move(self, arrays: Sequence[jax.Array] | None, specs: Specs) -> Arrays | None:
        """Starts the move of some arrays.

        Args:
            arrays: on the source; None in a process that has no device of it. With several
                replicas each is `[replicas, ...]`, its first axis divided over the devices.
                They must not be donated before they have arrived, that is before a result
                computed from them has come back.
            specs: shapes and types of the arrays, the same in all processes. With several
                replicas they are of the whole `[replicas, ...]`, unless a spec has another
                sharding over the target: then each device's shard goes to the device of the same
                replica.

        Returns:
            The arrays on the target; None in a process that has no device of it.
        """
        if not self._is_split:
            for _, only, _ in self._links:
                return only.move(None if arrays is None else list(arrays), specs)
            return None
        shardings = [spec.sharding or self._sharding for spec in specs]
        shard_specs = [
            jax.ShapeDtypeStruct(sharding.shard_shape(spec.shape), spec.dtype)
            for spec, sharding in zip(specs, shardings, strict=True)
        ]
        local = [shards(array) for array in arrays or ()]
        arrived: list[Arrays] = []
        for index, one, arrives in self._links:
            own = None if index is None else [each[index] for each in local]
            moved = one.move(own, shard_specs)
            if arrives and moved is not None:
                arrived.append(moved)
        if not self._receives:
            return None
        by_array = zip(*arrived, strict=True)
        return [
            self._assembly(sharding)(spec, each)
            for spec, sharding, each in zip(specs, shardings, by_array, strict=True)
        ]


# Takes arrays on one group and returns them on another; None in a process without that group.
MoveArrays = Callable[[Arrays | None, Specs], Arrays | None]


def on_device(value: jax.Array, device: jax.Device) -> jax.Array:
    """Returns an array on `device`: itself if it is there, else a copy that has been started."""
    value = in_device_memory(value)
    return value if value.devices() == {device} else jax.device_put(value, device)


def copies_to(group: DeviceGroup) -> DeviceCopies:
    """Returns the copies to one group within this process; with replicas, of `[replicas, ...]`."""
    return DeviceCopies(group.split(0), group.local)


def takes_part(*groups: DeviceGroup) -> bool:
    """Whether this process has a device of any of the groups."""
    return any(group.local for group in groups)


def make_move(source: DeviceGroup, target: DeviceGroup) -> MoveArrays:
    """Returns the move from one group to another, of which this process has a device."""
    if source == target:
        return lambda arrays, specs: arrays
    if source.is_local and target.is_local:
        copies = copies_to(target)
        return lambda arrays, specs: copies.from_device(arrays or [])
    return Edge(source, target).move


class ToAll:
    """Sends values that are the same on all devices of a stage to the processes without one."""

    def __init__(self, groups: Sequence[DeviceGroup]):
        """Creates no edges yet.

        Args:
            groups: of all stages; each process gets the values on its first device in these.
        """
        self._groups = groups
        self._edges: dict[int, list[Edge]] = {}  # by the stage that they start from

    def share(self, stage: int, arrays: Sequence[Array] | None, specs: Specs) -> Arrays:
        """Returns the values in this process, before they have arrived.

        The first call for a stage creates its edges: every process makes it at the same point.

        Args:
            stage: whose values all processes get.
            arrays: in the processes that have a device of the stage; None in the others.
            specs: of the arrays, in all processes.
        """
        if stage not in self._edges:
            self._edges[stage] = self._edges_from(self._groups[stage])
        own = None if arrays is None else list(map(own_copy, arrays))
        for edge in self._edges[stage]:
            moved = edge.move(own, specs)
            if moved is not None:
                return moved
        return own or []

    def _edges_from(self, source: DeviceGroup) -> list[Edge]:
        here, first = jax.process_index(), source.devices[0]
        having = {device.process_index for device in source.devices}
        targets: dict[int, jax.Device] = {}
        for device in (device for group in self._groups for device in group.devices):
            if device.process_index not in having:
                targets.setdefault(device.process_index, device)
        return [
            Edge(DeviceGroup((first,)), DeviceGroup((device,)))
            for process, device in sorted(targets.items())
            if here in (first.process_index, process)
        ]


class Sent(NamedTuple):
    """A value that a stage sends to others."""

    position: int  # among the values that the stage computes
    number: int  # of the value
    stages: tuple[int, ...]  # that take it


class Route(NamedTuple):
    """The values that a stage sends to one group."""

    move: MoveArrays
    sent: list[Sent]
    specs: Specs

    def carry(self, values: Arrays | None) -> Iterator[tuple[jax.Array, Sent]]:
        """Moves values, and yields those that arrive in this process.

        Args:
            values: of the stage; None where the stage is in another process.
        """
        arrays = None if values is None else [values[each.position] for each in self.sent]
        arrived = self.move(arrays, self.specs)
        if arrived is not None:
            yield from zip(arrived, self.sent, strict=True)


def routes(
    sent: Sequence[Sent],
    builder: StageBuilder,
    index: int,
    groups: Sequence[DeviceGroup],
) -> list[Route]:
    """Returns the routes of which this process has an end, in an order that all processes share.

    Args:
        sent: the values.
        builder: of the stages, for the values' shapes.
        index: of the stage that sends them.
        groups: of each stage.
    """
    by_group: dict[DeviceGroup, list[Sent]] = {}
    for position, number, stages in sent:
        for group in dict.fromkeys(groups[stage] for stage in stages):
            there = tuple(stage for stage in stages if groups[stage] == group)
            by_group.setdefault(group, []).append(Sent(position, number, there))
    by_target = []
    for group, values in by_group.items():
        if not takes_part(groups[index], group):
            continue
        lead = (group.replicas,) if group.replicas > 1 else ()
        shapes = [builder.stages.split.values[each.number] for each in values]
        specs = [jax.ShapeDtypeStruct((*lead, *shape.shape), shape.dtype) for shape in shapes]
        by_target.append(Route(make_move(groups[index], group), values, specs))
    return by_target
