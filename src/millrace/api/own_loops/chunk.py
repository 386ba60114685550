"""Several iterations of a loop in one call: elements come in stacked, taps go out stacked.

    block [capacity, ...]        .  .  e  e  e  .        `count` elements from `start` on
                                       |  |  |
    carry  --------------->  iteration 0  1  2  -> carry
                                       |  |  |
    outs  [capacity, ...]              t  t  t  .  .     `used` of them, fewer if the loop ends

Start and count are arguments, so one executable runs chunks of every length.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from millrace.base.pytrees import ArrayTree
from millrace.programs.steps.loop import batch_at
from millrace.programs.taps.entries import stacked_bytes, tapped_at
from millrace.programs.taps.taps import Tapped

MAX_OUT_BYTES = 2**20  # of the taps of one chunk
MAX_ITERATIONS = 1024

# The values that a loop carries, and the states of the variables that its body assigns.
IterationCarry = tuple[list[ArrayTree], list[jax.Array]]
# Iterations so far, whether the loop continues, and the values that an iteration changes.
_ChunkState = tuple[jax.Array, jax.Array, tuple[IterationCarry, Tapped]]


class ChunkResult(NamedTuple):
    """The results of a chunk."""

    carry: Any  # an IterationCarry; outside of the program its leaves
    outs: Tapped  # [capacity, ...]
    used: jax.Array  # number of iterations that ran
    more: jax.Array  # whether the loop continues


def chunk_capacity(tapped: Tapped, capacity: int | None) -> int:
    """Returns the largest number of iterations in one chunk.

    Args:
        tapped: specs of the taps of one iteration.
        capacity: elements in a block of the infeed; None without an infeed.
    """
    most = MAX_ITERATIONS if capacity is None else capacity
    nbytes = stacked_bytes(tapped)
    return max(1, min(most, MAX_OUT_BYTES // nbytes)) if nbytes else most


def run_chunk(
    iteration: Callable[[IterationCarry, ArrayTree], tuple[IterationCarry, Tapped]],
    goes_on: Callable[[IterationCarry], jax.Array] | None,
    carry: IterationCarry,
    block: ArrayTree,
    start: jax.Array | int,
    count: jax.Array | int,
    outs: Tapped,
) -> ChunkResult:
    """Runs up to `count` iterations.

    Args:
        iteration: takes the carry and an element; returns the next carry, and taps.
        goes_on: whether another iteration follows a carry; None never ends the loop.
        carry: before the first iteration.
        block: elements, leaves `[capacity, ...]`; None if the loop has no infeed.
        start: index of the first element in the block.
        count: the largest number of iterations.
        outs: zeros, to be filled with the taps.
    """

    def step(
        index: jax.Array, state: tuple[IterationCarry, Tapped]
    ) -> tuple[IterationCarry, Tapped]:
        carry, outs = state
        element = None if block is None else batch_at(block, start + index)
        carry, tapped = iteration(carry, element)
        return carry, tapped_at(outs, index, tapped) if tapped else outs

    if goes_on is None:
        carry, outs = lax.fori_loop(0, count, step, (carry, outs))
        return ChunkResult(carry, outs, jnp.int32(count), jnp.bool_(True))

    def again(state: _ChunkState) -> jax.Array:
        index, more, _ = state
        return (index < count) & more

    def advance(state: _ChunkState) -> _ChunkState:
        index, _, inner = state
        inner = step(index, inner)
        return index + 1, goes_on(inner[0]), inner

    first = (jnp.int32(0), goes_on(carry), (carry, outs))
    used, more, (carry, outs) = lax.while_loop(again, advance, first)
    return ChunkResult(carry, outs, used, more)
