"""A loop of steps, or of parts of one: compiled as a loop, or unrolled."""

from collections.abc import Callable
from typing import TypeAlias, TypeVar

import jax
import jax.numpy as jnp
from jax import lax

from millrace.programs.plan import LoopForm

Carry = TypeVar("Carry")
Index: TypeAlias = int | jax.Array  # traced in a compiled loop, a number in unrolled code


def repeat(
    body: Callable[[Index, Carry], Carry],
    carry: Carry,
    count: Index,
    form: LoopForm,
    until: Callable[[Carry], jax.Array] | None = None,
) -> Carry:
    """Runs `carry = body(i, carry)` for i from 0.

    Args:
        body: one iteration.
        carry: values that the first iteration receives.
        count: iterations of a loop: a number, or a traced scalar, with which one executable serves
            any number. Unrolled code ignores it and runs the number of iterations in `form`.
        form: loop or unrolled.
        until: tells from the carry whether to stop before the next iteration; None never stops.
            Unrolled code runs on, and its body has to leave the carry unchanged.
    """
    if form.unroll is None and until is not None:
        return _repeat_until(body, carry, count, until)
    if form.unroll is None:
        return lax.fori_loop(0, count, body, carry)
    for index in range(form.unroll):
        carry = body(index, carry)
    return carry


def _repeat_until(
    body: Callable[[Index, Carry], Carry],
    carry: Carry,
    count: Index,
    until: Callable[[Carry], jax.Array],
) -> Carry:
    def goes_on(numbered: tuple[jax.Array, Carry]) -> jax.Array:
        return (numbered[0] < count) & ~until(numbered[1])

    def run(numbered: tuple[jax.Array, Carry]) -> tuple[jax.Array, Carry]:
        return numbered[0] + 1, body(*numbered)

    return lax.while_loop(goes_on, run, (jnp.int32(0), carry))[1]
