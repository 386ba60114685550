"""The form in which a program runs as replicas: its arguments, its trace, its new values.

    one replica     values [...]                   the function itself
    several         values [R, ...] in R parts     a device each: `programs/replicas/transform.py`

The results are those of the function, of replica 0, and taps `[R, ...]`. A value is either split,
with one part for each replica, or whole: all replicas have the same.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import keras
import numpy as np
from jax import lax

from millrace._compat.jaxpr import Graph, trace
from millrace.api.own_loops.copies import copies_of, put_copies, values_to_read
from millrace.api.own_loops.replication import ReplicaLaunch, in_trace, looking
from millrace.api.own_loops.scope import put, value_of
from millrace.base.devices import REPLICA, WHOLE, put_on, put_parts
from millrace.base.pytrees import Array, ArrayTree, SpecTree
from millrace.programs.replicas.sums import of_all, of_first
from millrace.programs.replicas.transform import OWN, on_replicas, specs_on
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
    """How the replicas of a program run, each on a device, or one where its values are."""

    def __init__(self, launch: ReplicaLaunch | None):
        """Sets the replicas: those of a launch, or one on the default device."""
        self.group = group = None if launch is None else launch.group
        self.count = 1 if group is None else group.replicas
        self.devices = None if group is None else group.devices  # of the program
        # Replicas of this process.
        self.local: Sequence[int] = (0,) if group is None else group.local
        # Whether each of the results of a program is split; each process has the taps of all.
        taps = IN_PARTS if self.is_local else AS_WHOLE
        self.results = ProgramResults(AS_WHOLE, taps, IN_PARTS, AS_WHOLE)
        self._sharding: jax.sharding.Sharding | None = None  # where values are bound to a device
        self._copying: dict[tuple[bool, ...], Callable[..., list[jax.Array]]] = {}

    @property
    def is_local(self) -> bool:
        """Whether all replicas run in this process."""
        return len(self.local) == self.count

    def looking(self) -> AbstractContextManager[Any]:
        """Surrounds traces that only look for variables and shapes; it may be in another trace."""
        return looking(self.group)

    def traced(self, function: Callable[..., object], *specs: SpecTree) -> tuple[Graph, Any]:
        """Traces the function of one replica; returns its graph and the specs of its results."""
        axes = [] if self.group is None else [(REPLICA, self.count)]
        return trace(in_trace(function, self.group), *specs, axes=axes)

    def mapped(
        self, function: Callable[..., Any], arguments: Any, results: Any
    ) -> Callable[..., Any]:
        """Makes a function of the values of all replicas out of that of one replica.

        Args:
            function: of one replica.
            arguments: for each, a tree of `IN_PARTS` and `AS_WHOLE`.
            results: the same for its results.
        """
        if self.group is None:
            return function
        kinds = jax.tree.map(_kind, (tuple(arguments), results))
        return on_replicas(in_trace(function, self.group), self.group, *kinds)

    def spec(self, spec: jax.ShapeDtypeStruct, is_split: bool) -> jax.ShapeDtypeStruct:
        """Returns the spec of the values of all replicas, given that of one replica's value."""
        if self.group is None:
            return jax.ShapeDtypeStruct(spec.shape, spec.dtype, sharding=self._sharding)
        return specs_on(self.group, _kind(is_split), spec)

    def take_device_of(self, values: Sequence[Array]) -> None:
        """Takes the device to which values are bound for that of all programs."""
        bound = [v for v in values if isinstance(v, jax.Array) and v.committed]
        if self.devices is None and bound:
            self.devices = tuple(bound[0].sharding.device_set)[:1]
            self._sharding = bound[0].sharding

    def values(
        self, changed: Variables, fixed: Variables
    ) -> tuple[list[jax.Array], list[jax.Array]]:
        """Returns the values of variables that the program assigns, and of others that it reads.

        Of several replicas the former are split, the latter where replicas have their own.
        """
        if self.group is None:
            return list(map(value_of, changed)), list(map(value_of, fixed))
        return copies_of(changed, self.group), values_to_read(fixed, self.group)

    def are_split(self, fixed: Variables, values: Sequence[jax.Array]) -> list[bool]:
        """Returns for each variable that a program only reads whether its value is split."""
        pairs = zip(fixed, values, strict=True)
        return [np.ndim(value) > len(variable.shape) for variable, value in pairs]

    def arguments(self, arrays: Sequence[Array]) -> list[Array]:
        """Returns whole values where the program takes them."""
        if self.group is None:
            return list(arrays)
        return [put_on(array, self.group.whole) for array in arrays]

    def parts(self, tree: ArrayTree) -> ArrayTree:
        """Returns values for the replicas of this process, `[local, ...]`, as split ones."""
        group = self.group
        return tree if group is None else jax.tree.map(lambda v: put_parts(v, group, 0), tree)

    def copies(self, values: Sequence[Array], are_split: Sequence[bool]) -> list[jax.Array]:
        """Returns copies of values, all of them split."""
        key = tuple(are_split)
        if key not in self._copying:
            copying = self.mapped(_copy, [[*key]], IN_PARTS)
            self._copying[key] = jax.jit(copying)
        return self._copying[key](list(values))

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
        """Assigns variables their new values, of replica 0, and keeps those of the others."""
        if self.group is None:
            put(changed, new)
            return
        if first is None and not self.is_local:
            first = jax.jit(self.mapped(of_first, [IN_PARTS], AS_WHOLE))(new)
        put_copies(changed, new, first)

    def result(self, result: Any) -> Any:
        """Returns whole results of a program as arrays of one device, the first of this process."""
        if self.group is None:
            return result
        return jax.tree.map(lambda leaf: leaf.addressable_data(0), result)


def _kind(is_split: bool) -> Any:
    return OWN if is_split else WHOLE


def _copy(values: list[jax.Array]) -> list[jax.Array]:
    return [jnp.copy(value) for value in values]
