"""Replicas of a function: which one it is, how many there are, and the sums over them.

    launching(devices)            functions compiled inside run once on each device, or each shards
    as_replicas(function, R)      replica 0 | replica 1 | ... | replica R - 1      one program
    replication_index()           which of them this is
    cross_replica_sum(x, 2)       groups of neighbours: 0 + 1 | 2 + 3 | ...

All replicas of one program run on the device of the program, side by side as one batch: `jax.vmap`
makes the collective operations out of it. The results are those of replicas on devices of their
own, the speed is not.

replication_index()                 0 .. replicas() - 1
in_replica(index, count)            says so, for whoever runs replicas in another way
"""

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from millrace.devices import REPLICA
from millrace.errors import OptionError, PlanError, UnsupportedError
from millrace.options import whole_number
from millrace.threads.scoped_value import ScopedValue


@dataclass(frozen=True, slots=True)
class _Replica:
    """The replica that is being traced."""

    count: int
    index: Any = None  # None where a function is only looked at
    is_of_batch: bool = False
    total: Callable[[Any, int], Any] | None = None


@dataclass(slots=True)
class Launch:
    """Who runs a function: on how many devices, of which one replica takes `shards`."""

    devices: int
    shards: int = 1  # as many as the function turns out to use

    @property
    def replicas(self) -> int:
        """Replicas that there are devices for.

        Raises:
            PlanError: if devices would be left over.
        """
        if self.devices % self.shards:
            raise PlanError(
                f"The program uses {self.shards} shards, and the system has {self.devices} "
                f"devices, which is no multiple of that. Configure {self.shards} devices, or a "
                "multiple for as many replicas."
            )
        return self.devices // self.shards


_replica = ScopedValue(_Replica(1))
_launch = ScopedValue[Launch | None](None)


def launching(devices: int) -> AbstractContextManager[Launch | None]:
    """Lets functions that are compiled inside run as replicas on so many devices."""
    return _launch.bound_to(Launch(devices))


def current_launch() -> Launch | None:
    """Returns who runs functions here; None if nobody has said."""
    return _launch.get()


def in_replica(
    index: Any, count: int, total: Callable[[Any, int], Any] | None = None
) -> AbstractContextManager[Any]:
    """Says which replica is being traced or run inside.

    Args:
        index: of the replica, a number or a traced one; None if the shapes alone matter.
        count: replicas that there are.
        total: adds a value over groups of so many replicas, where they are no batch of one trace.
    """
    return _replica.bound_to(_Replica(count, index, total=total))


def as_replicas(
    function: Callable[..., Any], count: int, in_axes: Any = 0, out_axes: Any = 0
) -> Callable[..., Any]:
    """Makes a function of one replica's values one of all replicas' values.

    Args:
        function: of one replica.
        count: replicas; for 1 the function stays as it is.
        in_axes: where arguments have an axis of replicas, as for `jax.vmap`.
        out_axes: where results get theirs.
    """
    if count == 1:
        return function

    def one(index: Any, args: tuple[Any, ...]) -> Any:
        with _replica.bound_to(_Replica(count, index, is_of_batch=True)):
            return function(*args)

    batched = jax.vmap(one, (0, in_axes), out_axes, axis_name=REPLICA)
    return lambda *args: batched(jnp.arange(count, dtype=jnp.int32), args)


def replicas() -> int:
    """Returns how many replicas the program that is being traced has."""
    return _replica.get().count


def replication_index() -> Any:
    """Returns the number of this replica, from 0."""
    index = _replica.get().index
    return jnp.int32(0 if index is None else index)


def cross_replica_sum(value: Any, replica_group_size: int | None = None) -> Any:
    """Returns the sum over replicas; its gradient is the sum of the replicas' gradients.

    Args:
        value: an array, or a tree of them.
        replica_group_size: replicas that are added, neighbours of each other; None is all.

    Raises:
        OptionError: if the replicas are no whole number of such groups.
    """
    size = _group_size(replica_group_size)
    return jax.tree.map(lambda leaf: _sum(jnp.asarray(leaf), size), value)


def cross_replica_mean(value: Any, replica_group_size: int | None = None) -> Any:
    """Returns the mean over replicas; otherwise as `cross_replica_sum`."""
    size = _group_size(replica_group_size)
    return jax.tree.map(lambda leaf: leaf / size, cross_replica_sum(value, size))


def holds_anywhere(truth: Any) -> Any:
    """Returns whether a truth value holds on any replica: one that all of them branch by."""
    if not _replica.get().is_of_batch:
        return truth
    return lax.pmax(jnp.asarray(truth).astype(jnp.int32), REPLICA) > 0


def largest(number: Any) -> Any:
    """Returns the largest of the replicas' numbers, such as turns that all of them make."""
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
def _sum(value: Any, size: int) -> Any:
    return _total(value, size)


def _sum_forward(value: Any, size: int) -> tuple[Any, None]:
    return _total(value, size), None


def _sum_backward(size: int, _: None, cotangent: Any) -> tuple[Any]:
    return (_sum(cotangent, size),)


_sum.defvjp(_sum_forward, _sum_backward)


def _total(value: Any, size: int) -> Any:
    replica = _replica.get()
    if size == 1 or replica.count == 1:
        return value
    if replica.total is not None:
        return replica.total(value, size)
    if replica.index is None:
        return value
    if not replica.is_of_batch:
        raise UnsupportedError(
            "A stage of a pipeline exchanges nothing with the stages of other replicas. Average "
            "the gradients: wrap the optimizer in CrossReplicaOptimizer."
        )
    if size == replica.count:
        return lax.psum(value, REPLICA)
    everyone = lax.all_gather(value, REPLICA)
    groups = everyone.reshape(-1, size, *value.shape).sum(1, dtype=value.dtype)
    return lax.dynamic_index_in_dim(groups, replica.index // size, keepdims=False)
