"""Exchange of values between replicas, in a fixed order.

    sums of two         x0 + x1 on replica 0, x1 + x0 on replica 1: the same in every bit
    sums of more        everyone's values on each replica, added up in the order of the replicas
    of accelerators     an all-reduce: the library of the devices chooses the order

So on CPUs the sums have the same bits in one process and in several. Arrays of one dtype are
exchanged together, since over a network the time of an exchange hardly depends on its size.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from millrace.base.devices import REPLICA, DeviceGroup

_NUMBERS = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32, 8: jnp.uint64}


def totals(values: Sequence[jax.Array], group: DeviceGroup, size: int) -> list[jax.Array]:
    """Returns the sum of each value over groups of replicas; runs under the mesh's axis.

    Args:
        values: of this replica.
        group: devices of the replicas.
        size: number of neighbouring replicas in a sum.
    """
    if size == group.replicas:
        # JAX counts truth values in a sum over all.
        values = [v.astype(jnp.int32) if v.dtype == jnp.bool_ else v for v in values]
        if group.platform != "cpu" or (group.is_local and size == 2):
            return [lax.psum(value, REPLICA) for value in values]
    return _by_dtype(values, lambda packed: _total(packed, group.replicas, size))


def of_first(tree: Any) -> Any:
    """Returns the values of replica 0, in every bit, on all of them."""
    is_first = lax.axis_index(REPLICA) == 0

    def own(value: jax.Array) -> jax.Array:
        bits = _as_numbers(value)
        return jnp.where(is_first, bits, jnp.zeros_like(bits))

    leaves, structure = jax.tree.flatten(tree)
    leaves = [jnp.asarray(leaf) for leaf in leaves]
    sums = _by_dtype([own(leaf) for leaf in leaves], lambda packed: lax.psum(packed, REPLICA))
    pairs = zip(sums, leaves, strict=True)
    return jax.tree.unflatten(structure, [_from_numbers(bits, leaf) for bits, leaf in pairs])


def of_all(tree: Any) -> Any:
    """Returns the values of all replicas on each of them, `[replicas, ...]`."""
    return jax.tree.map(lambda leaf: lax.all_gather(leaf, REPLICA), tree)


def _total(value: jax.Array, replicas: int, size: int) -> jax.Array:
    if size == 2:
        swap = [(replica, replica ^ 1) for replica in range(replicas)]
        return value + lax.ppermute(value, REPLICA, swap)
    everyone = lax.all_gather(value, REPLICA)
    if size == replicas:
        return lax.reduce_sum(everyone, axes=(0,))
    groups = everyone.reshape(-1, size, *value.shape).sum(1, dtype=value.dtype)
    return lax.dynamic_index_in_dim(groups, lax.axis_index(REPLICA) // size, keepdims=False)


def _by_dtype(
    values: Sequence[jax.Array], exchange: Callable[[jax.Array], jax.Array]
) -> list[jax.Array]:
    """Exchanges flat arrays of one dtype together."""
    of_dtype: dict[jnp.dtype, list[int]] = {}
    for index, value in enumerate(values):
        of_dtype.setdefault(value.dtype, []).append(index)
    results = list(values)
    for indices in of_dtype.values():
        if len(indices) == 1:
            results[indices[0]] = exchange(values[indices[0]])
            continue
        packed = exchange(jnp.concatenate([jnp.ravel(values[index]) for index in indices]))
        begin = 0
        for index in indices:
            end = begin + math.prod(values[index].shape)
            results[index] = packed[begin:end].reshape(values[index].shape)
            begin = end
    return results


def _as_numbers(value: jax.Array) -> jax.Array:
    if value.dtype == jnp.bool_:
        return value.astype(jnp.uint8)
    if jnp.issubdtype(value.dtype, jnp.complexfloating):
        return _as_numbers(jnp.stack([value.real, value.imag]))
    return lax.bitcast_convert_type(value, _NUMBERS[value.dtype.itemsize])


def _from_numbers(bits: jax.Array, value: jax.Array) -> jax.Array:
    if value.dtype == jnp.bool_:
        return bits.astype(jnp.bool_)
    if jnp.issubdtype(value.dtype, jnp.complexfloating):
        real, imaginary = _from_numbers(bits, jnp.stack([value.real, value.imag]))
        return lax.complex(real, imaginary)
    return lax.bitcast_convert_type(bits, value.dtype)
