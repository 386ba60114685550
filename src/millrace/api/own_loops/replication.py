"""Replicas of a function: the index of the current one, their number, and sums over them.

    replication_index()           index of the current replica, 0 .. replicas() - 1
    in_replica(index, count)      sets it, for replicas that are run in another way
    cross_replica_sum(x, 2)       groups of neighbours: 0 + 1 | 2 + 3 | ...

Each replica runs on a device of its own (`programs/replicas/transform.py`). Their sums have a fixed
order (`programs/replicas/sums.py`).
"""

import functools
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from millrace.base.devices import REPLICA, DeviceGroup
from millrace.base.options import whole_number
from millrace.base.threads.scoped_value import ScopedValue
from millrace.errors import OptionError, UnsupportedError
from millrace.programs.replicas.sums import totals

ReducedTree = TypeVar("ReducedTree")
ReplicaResults = TypeVar("ReplicaResults")
ReplicaIndex = int | np.integer | jax.Array


@dataclass(frozen=True, slots=True)
class _Replica:
    """The replica that is being traced."""

    count: int
    index: ReplicaIndex | None = None  # None where shapes alone matter
    group: DeviceGroup | None = None  # of their devices, also where shapes alone matter

    @property
    def has_axis(self) -> bool:
        """Whether the trace has an axis of replicas, over which JAX's collectives work."""
        return self.group is not None and self.index is not None


class ReplicaLaunch:
    """The devices for the replicas of a function; a subclass may give a replica several of them."""

    def __init__(self, devices: Sequence[jax.Device]):
        self.devices = tuple(devices)

    @property
    def of_replicas(self) -> tuple[jax.Device, ...]:
        """The device on which each replica computes. The first trace may change it."""
        return self.devices

    @property
    def group(self) -> DeviceGroup | None:
        """The devices of the replicas; None for one replica."""
        devices = self.of_replicas
        return None if len(devices) == 1 else DeviceGroup(devices)

    @property
    def key(self) -> Hashable:
        """The part of the key of a program."""
        return self.devices


_replica = ScopedValue(_Replica(1))
_exchanges = ScopedValue[list[int] | None](None)  # numbers of values that are exchanged
# The launch of functions and loops that choose none themselves: set by a caller of them.
launch_in_force = ScopedValue[ReplicaLaunch | None](None)


def in_replica(index: ReplicaIndex | None, count: int) -> AbstractContextManager[Any]:
    """Sets the replica that is traced or run inside.

    Args:
        index: of the replica, possibly traced; None if the shapes alone matter.
        count: number of replicas.
    """
    return _replica.bound_to(_Replica(count, index))


def in_trace(
    function: Callable[..., ReplicaResults], group: DeviceGroup | None
) -> Callable[..., ReplicaResults]:
    """Makes a function know its replica when it is traced under the axis `REPLICA`.

    Args:
        function: of one replica.
        group: a device for each replica; None for one replica, which has no axis.
    """
    if group is None:
        return function

    def one(*args: Any) -> ReplicaResults:
        index = lax.axis_index(REPLICA).astype(jnp.int32)
        with _replica.bound_to(_Replica(group.replicas, index, group)):
            return function(*args)

    return one


def looking(group: DeviceGroup | None) -> AbstractContextManager[Any]:
    """Sets the replicas for a trace in which the shapes of one replica alone matter."""
    if group is None:  # it may be in the trace of a replica
        return nullcontext()
    return _replica.bound_to(_Replica(group.replicas, group=group))


def watching_exchanges() -> AbstractContextManager[list[int] | None]:
    """Lists the exchanges of replicas that are traced inside."""
    return _exchanges.bound_to([])


def current_group() -> DeviceGroup | None:
    """Returns the devices of the replicas that are traced; None for one replica."""
    return _replica.get().group


def replicas() -> int:
    """Returns the number of replicas of the program that is being traced."""
    return _replica.get().count


def replication_index() -> Any:
    """Returns the index of the current replica, from 0."""
    index = _replica.get().index
    return jnp.int32(0 if index is None else index)


def cross_replica_sum(value: ReducedTree, replica_group_size: int | None = None) -> ReducedTree:
    """Returns the sum over replicas; its gradient is the sum of the replicas' gradients.

    Args:
        value: an array, or a tree of them.
        replica_group_size: number of neighbouring replicas that are added; None for all.

    Raises:
        OptionError: if it does not divide the number of replicas.
    """
    size = _group_size(replica_group_size)
    leaves, tree = jax.tree.flatten(value)
    return jax.tree.unflatten(tree, _sums([jnp.asarray(leaf) for leaf in leaves], size))


def cross_replica_mean(value: ReducedTree, replica_group_size: int | None = None) -> ReducedTree:
    """Returns the mean over replicas; otherwise like `cross_replica_sum`."""
    size = _group_size(replica_group_size)
    return jax.tree.map(lambda leaf: leaf / size, cross_replica_sum(value, size))


def holds_anywhere(truth: jax.Array) -> jax.Array:
    """Returns whether a truth value holds on any replica, so that all take the same branch."""
    if not _replica.get().has_axis:
        return truth
    return lax.pmax(jnp.asarray(truth).astype(jnp.int32), REPLICA) > 0


def largest(number: jax.Array) -> jax.Array:
    """Returns the largest of the replicas' numbers, such as numbers of iterations."""
    return lax.pmax(number, REPLICA) if _replica.get().has_axis else number


def _group_size(size: int | None) -> int:
    count = replicas()
    if size is None:
        return count
    size = whole_number("replica_group_size", size, 1)
    if count % size:
        raise OptionError(
            f"replica_group_size={size} does not divide the {count} replicas of this program. Set "
            f"a divisor of {count}, or None for all of them."
        )
    return size


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _sums(values: list[jax.Array], size: int) -> list[jax.Array]:
    return _totals(values, size)


def _sums_forward(values: list[jax.Array], size: int) -> tuple[list[jax.Array], None]:
    return _totals(values, size), None


def _sums_backward(size: int, _: None, cotangents: list[jax.Array]) -> tuple[list[jax.Array]]:
    # Those of whole numbers are of a dtype without values.
    real = [k for k, leaf in enumerate(cotangents) if leaf.dtype != jax.dtypes.float0]
    new = list(cotangents)
    for k, total in zip(real, _sums([cotangents[k] for k in real], size), strict=True):
        new[k] = total
    return (new,)


_sums.defvjp(_sums_forward, _sums_backward)


def _totals(values: list[jax.Array], size: int) -> list[jax.Array]:
    replica = _replica.get()
    if size == 1 or replica.count == 1 or replica.index is None:
        return values
    if replica.group is None:
        raise UnsupportedError(
            "A stage of a pipeline cannot exchange values with the stages of other replicas. "
            "Average the gradients in the optimizer, after the pipeline has added them up."
        )
    if (exchanges := _exchanges.get()) is not None:
        exchanges.append(len(values))
    return totals(values, replica.group, size)
