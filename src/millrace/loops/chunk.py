"""Some turns of a loop in one program: elements come stacked, and what is tapped goes stacked.

    block [capacity, ...]   .  .  e  e  e  .        `count` elements from `start` on
                                  |  |  |
    carry  ------------------->  turn turn turn  -> carry
                                  |  |  |
    outs  [capacity, ...]         t  t  t  .  .     `used` of them, fewer where the loop ends

Start and count are arguments, so one executable runs chunks of every length.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from millrace.steps.loop import batch_at
from millrace.taps.entries import record_at
from millrace.taps.taps import Tapped

MAX_OUT_BYTES = 2**20  # of what one chunk has tapped
MAX_TURNS = 1024


class ChunkResult(NamedTuple):
    """What a chunk leaves."""

    carry: Any
    outs: Tapped  # [capacity, ...]
    used: Any  # turns that were run
    more: Any  # whether the loop goes on


def chunk_capacity(tapped: Tapped, capacity: int | None) -> int:
    """Returns how many turns one chunk may have.

    Args:
        tapped: specs of what one turn taps.
        capacity: elements in a block of the infeed; None without one.
    """
    most = MAX_TURNS if capacity is None else capacity
    nbytes = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tapped))
    return max(1, min(most, MAX_OUT_BYTES // nbytes)) if nbytes else most


def room(tapped: Tapped, capacity: int) -> Tapped:
    """Returns zeros for what a chunk taps."""
    return jax.tree.map(lambda spec: jnp.zeros((capacity, *spec.shape), spec.dtype), tapped)


def run_chunk(
    turn: Callable[[Any, Any], tuple[Any, Tapped]],
    goes_on: Callable[[Any], Any] | None,
    carry: Any,
    block: Any,
    start: Any,
    count: Any,
    outs: Tapped,
) -> ChunkResult:
    """Runs up to `count` turns.

    Args:
        turn: takes what is carried and an element; returns the former anew, and what it tapped.
        goes_on: of what is carried, whether there is another turn; None is always.
        carry: what goes in.
        block: elements, leaves `[capacity, ...]`; None if the loop has no infeed.
        start: the first element.
        count: turns, at most.
        outs: room for what they tap.
    """

    def step(index: Any, state: tuple[Any, Tapped]) -> tuple[Any, Tapped]:
        carry, outs = state
        element = None if block is None else batch_at(block, start + index)
        carry, tapped = turn(carry, element)
        return carry, record_at(outs, index, tapped) if tapped else outs

    if goes_on is None:
        carry, outs = lax.fori_loop(0, count, step, (carry, outs))
        return ChunkResult(carry, outs, count, jnp.bool_(True))

    def again(state: tuple[Any, Any, Any]) -> Any:
        index, more, _ = state
        return (index < count) & more

    def advance(state: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        index, _, inner = state
        inner = step(index, inner)
        return index + 1, goes_on(inner[0]), inner

    first = (jnp.int32(0), goes_on(carry), (carry, outs))
    used, more, (carry, outs) = lax.while_loop(again, advance, first)
    return ChunkResult(carry, outs, used, more)
