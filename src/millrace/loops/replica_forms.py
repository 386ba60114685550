"""How the replicas of a program run: its arguments, its trace, and where its new values go.

    one replica           values [...]                   the function itself
    batch of replicas     values [R, ...]                one device, `jax.vmap`
    on devices            values [R, ...] in R parts     a device each, `jax.shard_map`

The results are the same: those of the function, of replica 0, and taps `[R, ...]`.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import keras

from millrace.devices import PARTS, WHOLE, DeviceGroup, put_on
from millrace.loops.copies import (
    copies_of,
    copies_on,
    put_copies,
    put_copies_of,
    replica_axes,
    values_to_read,
    values_to_read_on,
)
from millrace.loops.replica_exchange import host_order
from millrace.loops.replica_sums import of_all, of_first
from millrace.loops.replication import ReplicaLaunch, as_replicas, looking, on_devices
from millrace.loops.scope import put, value_of
from millrace.pytrees import Array, ArrayTree
from millrace.taps.taps import Tapped

Variables = Sequence[keras.Variable]


class ProgramResults(NamedTuple):
    """The results of a program."""

    result: Any  # of the function
    tapped: Tapped
    new: list[jax.Array]  # values of the variables that it assigns
    iterations: list[jax.Array]  # of loops whose numbers the caller checks
    # The new values of replica 0, where its device belongs to another process.
    first: list[jax.Array] | None = None


OneReplicasProgram = Callable[[list[jax.Array], list[jax.Array], list[Array]], ProgramResults]


class ReplicaForm:
    """How the replicas of a program run; this one is that of a function without replicas."""

    def __init__(self, count: int = 1, devices: tuple[jax.Device, ...] | None = None):
        """Sets the number of replicas.

        Args:
            count: number of replicas.
            devices: of the program; None for the default device.
        """
        self.count, self.devices = count, devices

    def looking(self) -> AbstractContextManager[Any]:
        """Surrounds traces that only look for variables and shapes; it may be in another trace."""
        return nullcontext()

    def values(
        self, changed: Variables, fixed: Variables
    ) -> tuple[list[jax.Array], list[jax.Array]]:
        """Returns the values of variables that the program assigns, and of others that it reads."""
        return list(map(value_of, changed)), list(map(value_of, fixed))

    def arguments(self, arrays: Sequence[Array]) -> list[Array]:
        """Returns the user's arrays where the program takes them."""
        return list(arrays)

    def trace(
        self,
        of_one: OneReplicasProgram,
        fixed_variables: Variables,
        changed: list[jax.Array],
        fixed: list[jax.Array],
        arrays: list[Array],
    ) -> ProgramResults:
        """Traces the program of all replicas.

        Args:
            of_one: the program of one replica.
            fixed_variables: that it only reads.
            changed: values of the variables that it assigns, as `values` returns them.
            fixed: those of `fixed_variables`.
            arrays: of the user.
        """
        return of_one(changed, fixed, arrays)

    def assign(self, changed: Variables, results: ProgramResults) -> None:
        """Assigns variables their new values, of replica 0, and keeps those of the others."""
        put(changed, results.new)

    def result(self, result: Any) -> Any:
        """Returns the result of the function, of replica 0, as arrays of one device."""
        return result


class BatchOfReplicas(ReplicaForm):
    """All replicas on one device, where there are not enough devices for them."""

    def looking(self) -> AbstractContextManager[Any]:
        """Surrounds traces that only look for variables and shapes."""
        return looking(self.count, None)

    def values(
        self, changed: Variables, fixed: Variables
    ) -> tuple[list[jax.Array], list[jax.Array]]:
        """Returns the values of variables: `[R, ...]`, and those that all replicas share."""
        return copies_of(changed, self.count), values_to_read(fixed, self.count)

    def trace(
        self,
        of_one: OneReplicasProgram,
        fixed_variables: Variables,
        changed: list[jax.Array],
        fixed: list[jax.Array],
        arrays: list[Array],
    ) -> ProgramResults:
        """Traces the function of one replica, as one of a batch."""
        axes = 0, replica_axes(fixed_variables, fixed), None
        results = as_replicas(of_one, self.count, axes)(changed, fixed, arrays)
        result, iterations = jax.tree.map(
            lambda leaf: leaf[0], (results.result, results.iterations)
        )
        return results._replace(result=result, iterations=iterations)

    def assign(self, changed: Variables, results: ProgramResults) -> None:
        """Assigns variables the values of replica 0, and keeps those of all."""
        put_copies(changed, results.new)


class ReplicasOnDevices(ReplicaForm):
    """Each replica on a device of its own, of this process or of several."""

    def __init__(self, group: DeviceGroup):
        super().__init__(group.replicas, group.devices)
        self._group = group
        host_order()

    def looking(self) -> AbstractContextManager[Any]:
        """Surrounds traces that only look for variables and shapes."""
        return looking(self.count, self._group)

    def values(
        self, changed: Variables, fixed: Variables
    ) -> tuple[list[jax.Array], list[jax.Array]]:
        """Returns the values of variables: in parts, or whole on each device."""
        return copies_on(changed, self._group), values_to_read_on(fixed, self._group)

    def arguments(self, arrays: Sequence[Array]) -> list[Array]:
        """Returns the user's arrays, on each device."""
        return [put_on(array, self._group.whole) for array in arrays]

    def trace(
        self,
        of_one: OneReplicasProgram,
        fixed_variables: Variables,
        changed: list[jax.Array],
        fixed: list[jax.Array],
        arrays: list[Array],
    ) -> ProgramResults:
        """Traces the function of one replica, for its device."""
        axes = replica_axes(fixed_variables, fixed)
        is_local = self._group.is_local

        def one(
            changed: list[jax.Array], fixed: list[jax.Array], arrays: list[Array]
        ) -> ProgramResults:
            own = [value[0] for value in changed]
            read = [
                value if axis is None else value[0] for value, axis in zip(fixed, axes, strict=True)
            ]
            results = of_one(own, read, arrays)
            result: ArrayTree = jax.tree.map(jnp.asarray, results.result)
            tapped, first = results.tapped, None
            if is_local:
                tapped = jax.tree.map(lambda leaf: leaf[None], tapped)
            else:
                result, first = of_first((result, results.new))
                tapped = of_all(tapped)
            new = [value[None] for value in results.new]
            return ProgramResults(result, tapped, new, results.iterations, first)

        specs = PARTS, [WHOLE if axis is None else PARTS for axis in axes], WHOLE
        results = ProgramResults(WHOLE, PARTS if is_local else WHOLE, PARTS, WHOLE, WHOLE)  # type: ignore[arg-type]
        return on_devices(one, self._group, specs, results)(changed, fixed, arrays)

    def assign(self, changed: Variables, results: ProgramResults) -> None:
        """Assigns variables the values of replica 0, and keeps those of all."""
        put_copies_of(changed, results.new, results.first)

    def result(self, result: Any) -> Any:
        """Returns the result of replica 0, on the first device of this process."""
        return jax.tree.map(lambda leaf: leaf.addressable_data(0), result)


def form_of(launch: ReplicaLaunch | None) -> ReplicaForm:
    """Returns the way in which replicas run on the devices of a launch; None for one replica."""
    if launch is None or launch.replicas == 1:
        return ReplicaForm()
    group = launch.group
    return BatchOfReplicas(launch.replicas) if group is None else ReplicasOnDevices(group)
