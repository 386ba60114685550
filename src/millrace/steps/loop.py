"""Several steps in one program, as a compiled loop or one after the other."""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import lax

from millrace.plan import LoopForm

Carry = TypeVar("Carry")


def repeat(
    body: Callable[[Any, Carry], Carry],
    carry: Carry,
    count: Any,
    form: LoopForm,
    until: Callable[[Carry], Any] | None = None,
) -> Carry:
    """Runs `carry = body(i, carry)` for i from 0.

    Args:
        body: one turn.
        carry: what goes in.
        count: turns of a loop: a number, or a traced scalar, so that one executable serves all.
            Ignored by the unrolled form, whose number of turns is the form's.
        form: loop or unrolled.
        until: of the carry, whether to stop before the next turn; None never stops. Unrolled code
            runs on, and its body has to see to it that nothing changes.
    """
    if form.unroll is None and until is not None:
        return _repeat_until(body, carry, count, until)
    if form.unroll is None:
        return lax.fori_loop(0, count, body, carry)
    for index in range(form.unroll):
        carry = body(index, carry)
    return carry


def _repeat_until(
    body: Callable[[Any, Carry], Carry], carry: Carry, count: Any, until: Callable[[Carry], Any]
) -> Carry:
    def goes_on(turn: tuple[Any, Carry]) -> Any:
        return (turn[0] < count) & ~until(turn[1])

    def run(turn: tuple[Any, Carry]) -> tuple[Any, Carry]:
        return turn[0] + 1, body(*turn)

    return lax.while_loop(goes_on, run, (jnp.int32(0), carry))[1]


def batch_at(batches: Any, index: Any) -> Any:
    """Returns batch `index` of a block; leaves are `[capacity, ...]`."""
    return jax.tree.map(
        lambda leaf: lax.dynamic_index_in_dim(leaf, index, axis=0, keepdims=False), batches
    )
