"""Updates that are looked at before they are applied.

    as written     | gradients 0, look, apply | gradients 1, look, apply | ...
    as compiled    gradients 0, look | apply, gradients 1, look | apply, gradients 2, look | ...

In a loop, whether to go on is decided between turns. So a turn begins with applying what the turn
before has found good: in place, as without looking. Choosing between old and new values within a
turn would read all of the weights and the optimizer's values once more, which takes a tenth to a
fifth of the time of a step. Unrolled code has no other way.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import keras
from jax import lax

from millrace.plan import Plan
from millrace.steps.accumulate import Gradients
from millrace.steps.state import State
from millrace.steps.tapped_step import tap_update
from millrace.taps.entries import Taps
from millrace.taps.taps import Tapped, collecting
from millrace.taps.tensors import Rows, found_non_finite, packed

Pending = tuple[Gradients, Any]  # of an update, and what its micro-batches have changed
# (number of the update, state, records, taps) -> pending, records, taps
Compute = Callable[[Any, State, Any, Taps], tuple[Pending, Any, Taps]]


def can_wait(update: Tapped) -> bool:
    """Whether an update taps nothing while it is applied: then it may be applied a turn later."""
    return all(isinstance(key, Rows) for key in update.keys)


def run_until_halted(
    model: keras.Model,
    plan: Plan,
    count: Any,
    compute: Compute,
    apply: Callable[[State, Pending], State],
    carry: tuple[State, Any, Taps],
) -> tuple[State, Any, Taps]:
    """Runs updates up to the first with a gradient that is not finite, which is not applied.

    Args:
        model: whose gradients they are.
        plan: which of them are looked at.
        count: updates; at least one.
        compute: the gradients of one update.
        apply: returns the state after an update.
        carry: state, records of steps, taps.
    """

    def look(number: Any, state: State, records: Any, taps: Taps) -> Any:
        pending, records, taps = compute(number, state, records, taps)
        _, found = collecting(lambda: tap_update(model, plan, state, pending[0]))()
        found = packed(found)
        taps = taps.with_update(number, found)._replace(halted=found_non_finite(found))
        return pending, records, taps

    def turn(carry: Any) -> Any:
        number, state, (pending, records, taps) = carry
        state = apply(state, pending)
        return number + 1, state, look(number, state, records, taps)

    def goes_on(carry: Any) -> Any:
        number, _, (_, _, taps) = carry
        return (number < count) & ~taps.halted

    state, records, taps = carry
    first = (jnp.int32(1), state, look(jnp.int32(0), state, records, taps))
    _, state, (pending, records, taps) = lax.while_loop(goes_on, turn, first)
    # A loop of one turn or none: unlike a conditional it leaves what it is given in place.
    turns = jnp.where(taps.halted, 0, 1)
    state = lax.fori_loop(0, turns, lambda _, state: apply(state, pending), state)
    return state, records, taps


def unless(halted: Any, new: State, old: State) -> State:
    """Returns `new`, or `old` where an update was halted. The choice fuses with the update."""
    if halted is None:
        return new
    return jax.tree.map(lambda n, o: jnp.where(halted, o, n), new, old)
