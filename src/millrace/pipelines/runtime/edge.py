"""Arrays of one stage's devices -> the devices of another stage, also in other processes.

    source  d0 ──────> e0  target      replica 0: within a process, a copy
            d1 ══════> e1              replica 1: to another process, see links.py

Every process that has a device of either stage makes the edge, and calls `move` as often and in the
same order as the others. No call waits for the other processes or for the arrays.
"""

from collections.abc import Sequence

import jax
from jax.sharding import Sharding

from millrace._compat.transfer import Assembly, shards
from millrace.devices import DeviceGroup
from millrace.pipelines.runtime.links import Specs, link


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
