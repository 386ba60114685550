"""A small array that is ready when another one is, and that no later program takes over."""

from collections.abc import Iterable

import jax

_LARGE = 2**16  # bytes; of a larger array one element is taken, by a program that is compiled once


def markers(arrays: Iterable[jax.Array]) -> list[jax.Array]:
    """Returns an array to wait for on each device of this process, made from the smallest array.

    A program that adds to accumulators takes over their memory, and so does the next one: who
    waits for its result must take something from it before. That costs a copy of a few bytes.

    Args:
        arrays: results of one program.

    Returns:
        Nothing for no arrays.
    """
    smallest = min(arrays, key=lambda array: array.nbytes, default=None)
    if smallest is None:
        return []
    parts = [shard.data for shard in smallest.addressable_shards]
    if smallest.nbytes > _LARGE:
        return [_element(part) for part in parts]
    return [jax.device_put(part, part.sharding, may_alias=False) for part in parts]


@jax.jit
def _element(array: jax.Array) -> jax.Array:
    return jax.lax.slice(array, (0,) * array.ndim, (1,) * array.ndim)
