"""Several steps in one program, as a compiled loop or one after the other."""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
from jax import lax

from millrace.plan import LoopForm

Carry = TypeVar("Carry")


def repeat(body: Callable[[Any, Carry], Carry], carry: Carry, count: Any, form: LoopForm) -> Carry:
    """Runs `carry = body(i, carry)` for i from 0.

    Args:
        body: one turn.
        carry: what goes in.
        count: turns of a loop: a number, or a traced scalar, so that one executable serves all.
            Ignored by the unrolled form, whose number of turns is the form's.
        form: loop or unrolled.
    """
    if form.unroll is None:
        return lax.fori_loop(0, count, body, carry)
    for index in range(form.unroll):
        carry = body(index, carry)
    return carry


def batch_at(batches: Any, index: Any) -> Any:
    """Returns batch `index` of a block; leaves are `[capacity, ...]`."""
    return jax.tree.map(
        lambda leaf: lax.dynamic_index_in_dim(leaf, index, axis=0, keepdims=False), batches
    )


def record_at(records: Any, index: Any, value: Any) -> Any:
    """Stores `value` as entry `index` of `records`; leaves are `[capacity, ...]`."""
    return jax.tree.map(
        lambda leaf, new: lax.dynamic_update_index_in_dim(leaf, new.astype(leaf.dtype), index, 0),
        records,
        value,
    )
