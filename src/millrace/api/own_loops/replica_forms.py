"""The forms in which a program runs as replicas: its arguments, its trace, its new values.

    one replica     values [...]                   the function itself
    several         values [R, ...] in R parts     a device each, `jax.shard_map`

The results are those of the function, of replica 0, and taps `[R, ...]`. A value is either split,
with one part for each replica, or whole: all replicas have the same.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import keras
import numpy as np
from jax import lax

from millrace._compat.jaxpr import Graph, trace
from millrace.api.own_loops.copies import copies_of, put_copies, values_to_read
from millrace.api.own_loops.replica_sums import of_all, of_first
from millrace.api.own_loops.replication import ReplicaLaunch, in_trace, looking, on_devices
from millrace.api.own_loops.scope import put, value_of
from millrace.base.devices import PARTS, REPLICA, WHOLE, DeviceGroup, put_on, put_parts
from millrace.base.pytrees import Array, ArrayTree, SpecTree
from millrace.programs.taps.taps import Tapped

Variables = Sequence[keras.Variable]
IN_PARTS: Any = True  # of a value, or of all values in a tree
AS_WHOLE: Any = False


class ProgramResults(NamedTuple):
    """The results of a program."""

    result: Any  # of the function
    tapped: Tapped
    new: list[jax.Array]  # values of the variables that it assigns
    # The new values of replica 0, where its device belongs to another process.
    first: list[jax.Array] | None = None


class ReplicaForm:
    """How the replicas of a program run; this one is that of a function without replicas."""

    # Whether each of the results of a program is split.
    results = ProgramResults(AS_WHOLE, IN_PARTS, IN_PARTS, AS_WHOLE)  # type: ignore[arg-type]

    def __init__(self, group: DeviceGroup | None = None):
        """Sets the replicas.

        Args:
            group: a device for each; None for one on the default device.
        """
        self.count = 1 if group is None else group.replicas
        self.devices = None if group is None else group.devices  # of the program
        # Replicas of this process.
        self.local: Sequence[int] = (0,) if group is None else group.local
        self._sharding: jax.sharding.Sharding | None = None  # where values are bound to a device
        self._copying: dict[tuple[bool, ...], Callable[..., list[jax.Array]]] = {}

    @property
    def is_local(self) -> bool:
        """Whether all replicas run in this process."""
        return len(self.local) == self.count

    def looking(self) -> AbstractContextManager[Any]:
        """Surrounds traces that only look for variables and shapes; it may be in another trace."""
        return nullcontext()

    def traced(self, function: Callable[..., object], *specs: SpecTree) -> tuple[Graph, Any]:
        """Traces the function of one replica; returns its graph and the specs of its results."""
        return trace(function, *specs)

    def mapped(
        self, function: Callable[..., Any], arguments: Any, results: Any
    ) -> Callable[..., Any]:
        """Makes a function of the values of all replicas out of that of one replica.

        Args:
            function: of one replica.
            arguments: for each, a tree of `IN_PARTS` and `AS_WHOLE`.
            results: the same for its results.
        """
        return function

    def spec(self, spec: jax.ShapeDtypeStruct, is_split: bool) -> jax.ShapeDtypeStruct:
        """Returns the spec of the values of all replicas, given that of one replica's value."""
        return jax.ShapeDtypeStruct(spec.shape, spec.dtype, sharding=self._sharding)

    def take_device_of(self, values: Sequence[Array]) -> None:
        """Takes the device to which values are bound for that of all programs."""
        bound = [v for v in values if isinstance(v, jax.Array) and v.committed]
        if self.devices is None and bound:
            self.devices = tuple(bound[0].sharding.device_set)[:1]
            self._sharding = bound[0].sharding

    def values(
        self, changed: Variables, fixed: Variables
    ) -> tuple[list[jax.Array], list[jax.Array]]:
        """Returns the values of variables that the program assigns, and of others that it reads."""
        return list(map(value_of, changed)), list(map(value_of, fixed))

    def are_split(self, fixed: Variables, values: Sequence[jax.Array]) -> list[bool]:
        """Returns for each variable that a program only reads whether its value is split."""
        pairs = zip(fixed, values, strict=True)
        return [np.ndim(value) > len(variable.shape) for variable, value in pairs]

    def arguments(self, arrays: Sequence[Array]) -> list[Array]:
        """Returns whole values where the program takes them."""
        return list(arrays)

    def parts(self, tree: ArrayTree) -> ArrayTree:
        """Returns values for the replicas of this process, `[local, ...]`, as split ones."""
        return tree

    def copies(self, values: Sequence[Array], are_split: Sequence[bool]) -> list[jax.Array]:
        """Returns copies of values, all of them split."""
        key = tuple(are_split)
        if key not in self._copying:
            copying = self.mapped(_copy, [[*key]], IN_PARTS)
            self._copying[key] = jax.jit(copying)
        return self._copying[key](list(values))

    def ending(self, results: ProgramResults) -> ProgramResults:
        """Adds to the program of one replica what others need of its results."""
        return results

    def smallest(self, number: int) -> int:
        """Returns the smallest of the processes' numbers."""
        return number

    def assign(
        self, changed: Variables, new: list[jax.Array], first: list[jax.Array] | None = None
    ) -> None:
        """Assigns variables their new values, of replica 0, and keeps those of the others."""
        put(changed, new)

    def result(self, result: Any) -> Any:
        """Returns whole results of a program as arrays of one device."""
        return result


class ReplicasOnDevices(ReplicaForm):
    """Each replica on a device of its own, of this process or of several."""

    def __init__(self, group: DeviceGroup):
        super().__init__(group)
        self._group = group
        if not group.is_local:  # each process has the taps of all
            self.results = self.results._replace(tapped=AS_WHOLE)

    def looking(self) -> AbstractContextManager[Any]:
        """Surrounds traces that only look for variables and shapes; it may be in another trace."""
        return looking(self._group)

    def traced(self, function: Callable[..., object], *specs: SpecTree) -> tuple[Graph, Any]:
        """Traces the function of one replica; returns its graph and the specs of its results."""
        return trace(in_trace(function, self._group), *specs, axes=[(REPLICA, self.count)])

    def mapped(
        self, function: Callable[..., Any], arguments: Any, results: Any
    ) -> Callable[..., Any]:
        """Makes a function that runs on all devices."""

        def one(*trees: ArrayTree) -> ArrayTree:
            own = jax.tree.map(
                lambda split, tree: _first(tree) if split else tree, arguments, trees
            )
            return jax.tree.map(_with_axis, results, function(*own))

        def _with_axis(is_split: bool, tree: ArrayTree) -> ArrayTree:
            return jax.tree.map(lambda leaf: leaf[None] if is_split else jnp.asarray(leaf), tree)

        arguments = tuple(arguments)
        specs = jax.tree.map(_mesh_spec, (arguments, results))
        return on_devices(one, self._group, *specs)

    def spec(self, spec: jax.ShapeDtypeStruct, is_split: bool) -> jax.ShapeDtypeStruct:
        """Returns the spec of the values of all replicas, with their devices."""
        shape, layout = (self.count, *spec.shape), self._group.split(0)
        if not is_split:
            shape, layout = spec.shape, self._group.whole
        return jax.ShapeDtypeStruct(shape, spec.dtype, sharding=layout)

    def values(
        self, changed: Variables, fixed: Variables
    ) -> tuple[list[jax.Array], list[jax.Array]]:
        """Returns the values of variables: in parts, or whole on each device."""
        return copies_of(changed, self._group), values_to_read(fixed, self._group)

    def arguments(self, arrays: Sequence[Array]) -> list[Array]:
        """Returns whole values on each device."""
        return [put_on(array, self._group.whole) for array in arrays]

    def parts(self, tree: ArrayTree) -> ArrayTree:
        """Returns values for the replicas of this process, `[local, ...]`, on their devices."""
        return jax.tree.map(lambda leaf: put_parts(leaf, self._group, 0), tree)

    def ending(self, results: ProgramResults) -> ProgramResults:
        """Sends the results of replica 0, and the taps of all, to the other processes."""
        if self.is_local:
            return results
        result, first = of_first((results.result, results.new))
        return results._replace(result=result, first=first, tapped=of_all(results.tapped))

    def smallest(self, number: int) -> int:
        """Returns the smallest of the processes' numbers."""
        smallest = self.mapped(lambda value: lax.pmin(value, REPLICA), [IN_PARTS], AS_WHOLE)
        return int(self.result(jax.jit(smallest)(self.parts(np.full(len(self.local), number)))))

    def assign(
        self, changed: Variables, new: list[jax.Array], first: list[jax.Array] | None = None
    ) -> None:
        """Assigns variables the values of replica 0, and keeps those of all."""
        if first is None and not self.is_local:
            first = jax.jit(self.mapped(of_first, [IN_PARTS], AS_WHOLE))(new)
        put_copies(changed, new, first)

    def result(self, result: Any) -> Any:
        """Returns the result of replica 0, on the first device of this process."""
        return jax.tree.map(lambda leaf: leaf.addressable_data(0), result)


def form_of(launch: ReplicaLaunch | None) -> ReplicaForm:
    """Returns the way in which replicas run on the devices of a launch; None for one replica."""
    group = None if launch is None else launch.group
    return ReplicaForm() if group is None else ReplicasOnDevices(group)


def _mesh_spec(is_split: bool) -> jax.sharding.PartitionSpec:
    return PARTS if is_split else WHOLE


def _copy(values: list[jax.Array]) -> list[jax.Array]:
    return [jnp.copy(value) for value in values]


def _first(tree: ArrayTree) -> ArrayTree:
    return jax.tree.map(lambda leaf: leaf[0], tree)
