"""Collective operations of replicas.

cross_replica_sum(x, replica_group_size)    -> millrace.extend.cross_replica_sum
cross_replica_mean(x, replica_group_size)   -> millrace.extend.cross_replica_mean
assume_equal_across_replicas(tensors)       without effect
"""

from typing import TypeVar

from millrace.extend import cross_replica_mean as _mean
from millrace.extend import cross_replica_sum as _sum
from millrace_ipu.pytrees import ArrayTree

_Tensors = TypeVar("_Tensors", bound=ArrayTree)


def cross_replica_sum(
    x: _Tensors, replica_group_size: int | None = None, name: str | None = None
) -> _Tensors:
    """Returns the sum over replicas. Its gradient is the sum of the replicas' gradients.

    Args:
        x: an array, or a tree of them.
        replica_group_size: number of neighbouring replicas in a sum; None sums over all.
        name: ignored.

    Raises:
        OptionError: if the replicas are not a whole number of such groups.
    """
    del name
    return _sum(x, replica_group_size)


def cross_replica_mean(
    x: _Tensors, replica_group_size: int | None = None, name: str | None = None
) -> _Tensors:
    """Returns the mean over replicas, otherwise as `cross_replica_sum`."""
    del name
    return _mean(x, replica_group_size)


def assume_equal_across_replicas(tensors: _Tensors, inplace: bool = False) -> _Tensors:
    """Returns the tensors; whether the replicas have equal ones is not checked."""
    del inplace
    return tensors
