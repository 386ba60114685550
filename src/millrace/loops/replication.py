"""Replicas of a function: the index of the current one, their number, and sums over them.

    launching(devices)            functions compiled inside run as a replica on each device
    as_replicas(function, R)      replica 0 | replica 1 | ... | replica R - 1      one program
    replication_index()           index of the current replica, 0 .. replicas() - 1
    in_replica(index, count)      sets it, for replicas that are run in another way
    cross_replica_sum(x, 2)       groups of neighbours: 0 + 1 | 2 + 3 | ...

All replicas of one program run on the device of the program, side by side as one batch: `jax.vmap`
turns collective operations into reductions of an axis. The results are those of replicas on
separate devices, the speed is not.
"""

import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from millrace.devices import REPLICA
from millrace.errors import OptionError, PlanError, UnsupportedError
from millrace.options import whole_number
from millrace.threads.scoped_value import ScopedValue

ReducedTree = TypeVar("ReducedTree")
ReplicaResults = TypeVar("ReplicaResults")
ReplicaIndex = int | np.integer | jax.Array
Total = Callable[[jax.Array, int], jax.Array]  # adds a value over groups of replicas
# Of `jax.vmap`: where values have an axis of replicas.
Axes: TypeAlias = "int | Sequence[Axes] | None"


@dataclass(frozen=True, slots=True)
class _Replica:
    """The replica that is being traced."""

    count: int
    index: ReplicaIndex | None = None  # None where shapes alone matter
    is_of_batch: bool = False
    total: Total | None = None


@dataclass(slots=True)
class ReplicaLaunch:
    """The devices for the replicas of a function, each of which takes `shards` of them."""

    devices: int
    shards: int = 1  # grows with the shards that the function uses in its first trace

    @property
    def replicas(self) -> int:
        """Number of replicas that the devices suffice for.

        Raises:
            PlanError: if devices would be left over.
        """
        if self.devices % self.shards:
            raise PlanError(
                f"The program uses {self.shards} shards, and the system has {self.devices} "
                f"devices, which is not a multiple of that. Configure {self.shards} devices, or a "
                "multiple of it for several replicas."
            )
        return self.devices // self.shards


_replica = ScopedValue(_Replica(1))
_launch = ScopedValue[ReplicaLaunch | None](None)


def launching(devices: int) -> AbstractContextManager[ReplicaLaunch | None]:
    """Runs the functions that are compiled inside as replicas on this number of devices."""
    return _launch.bound_to(ReplicaLaunch(devices))


def current_launch() -> ReplicaLaunch | None:
    """Returns the devices for replicas of functions; None outside of `launching`."""
    return _launch.get()


def in_replica(
    index: ReplicaIndex | None, count: int, total: Total | None = None
) -> AbstractContextManager[Any]:
    """Sets the replica that is traced or run inside.

    Args:
        index: of the replica, possibly traced; None if the shapes alone matter.
        count: number of replicas.
        total: adds a value over groups of neighbouring replicas, given the size of a group, for
            replicas that are not one batch of a trace.
    """
    return _replica.bound_to(_Replica(count, index, total=total))


def as_replicas(
    function: Callable[..., ReplicaResults], count: int, in_axes: Axes = 0, out_axes: Axes = 0
) -> Callable[..., ReplicaResults]:
    """Makes a function of the values of all replicas out of a function of one replica's values.

    Args:
        function: of one replica.
        count: number of replicas; for 1 the function is returned unchanged.
        in_axes: axes of replicas in the arguments, as for `jax.vmap`.
        out_axes: axes of replicas in the results.
    """
    if count == 1:
        return function

    def one(index: jax.Array, args: tuple[object, ...]) -> ReplicaResults:
        with _replica.bound_to(_Replica(count, index, is_of_batch=True)):
            return function(*args)

    batched = jax.vmap(one, (0, in_axes), out_axes, axis_name=REPLICA)
    return lambda *args: batched(jnp.arange(count, dtype=jnp.int32), args)


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
    return jax.tree.map(lambda leaf: _sum(jnp.asarray(leaf), size), value)


def cross_replica_mean(value: ReducedTree, replica_group_size: int | None = None) -> ReducedTree:
    """Returns the mean over replicas; otherwise like `cross_replica_sum`."""
    size = _group_size(replica_group_size)
    return jax.tree.map(lambda leaf: leaf / size, cross_replica_sum(value, size))


def holds_anywhere(truth: jax.Array) -> jax.Array:
    """Returns whether a truth value holds on any replica, so that all take the same branch."""
    if not _replica.get().is_of_batch:
        return truth
    return lax.pmax(jnp.asarray(truth).astype(jnp.int32), REPLICA) > 0


def largest(number: jax.Array) -> jax.Array:
    """Returns the largest of the replicas' numbers, such as numbers of iterations."""
    return lax.pmax(number, REPLICA) if _replica.get().is_of_batch else number


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
def _sum(value: jax.Array, size: int) -> jax.Array:
    return _total(value, size)


def _sum_forward(value: jax.Array, size: int) -> tuple[jax.Array, None]:
    return _total(value, size), None


def _sum_backward(size: int, _: None, cotangent: jax.Array) -> tuple[jax.Array]:
    return (_sum(cotangent, size),)


_sum.defvjp(_sum_forward, _sum_backward)


def _total(value: jax.Array, size: int) -> jax.Array:
    replica = _replica.get()
    if size == 1 or replica.count == 1:
        return value
    if replica.total is not None:
        return replica.total(value, size)
    if replica.index is None:
        return value
    if not replica.is_of_batch:
        raise UnsupportedError(
            "A stage of a pipeline cannot exchange values with the stages of other replicas. "
            "Average the gradients: wrap the optimizer in CrossReplicaOptimizer."
        )
    if size == replica.count:
        return lax.psum(value, REPLICA)
    everyone = lax.all_gather(value, REPLICA)
    groups = everyone.reshape(-1, size, *value.shape).sum(1, dtype=value.dtype)
    return lax.dynamic_index_in_dim(groups, replica.index // size, keepdims=False)
