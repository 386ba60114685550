"""Several steps in one program, and a loop that halts before a bad update.

    as written     | gradients 0, inspect, apply | gradients 1, inspect, apply | ...
    as compiled    gradients 0, inspect | apply, gradients 1, inspect | apply, gradients 2, ...

A loop decides between iterations whether to continue. So an iteration begins by applying the update
that the one before found finite: in place, as without inspection. Choosing between old and new
values within an iteration would read all of the weights and the optimizer's values once more,
which takes a tenth to a fifth of the time of a step. Unrolled code has no other way.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import keras
from jax import lax

from millrace.base.pytrees import ArrayTree
from millrace.programs.plan import Plan
from millrace.programs.steps.repetition import Index
from millrace.programs.steps.state import State
from millrace.programs.steps.step import PendingUpdate
from millrace.programs.steps.tapped_step import tap_update
from millrace.programs.taps.entries import Taps
from millrace.programs.taps.taps import Tapped, collecting
from millrace.programs.taps.tensors import Rows, found_non_finite, packed


def batch_at(batches: ArrayTree, index: Index) -> ArrayTree:
    """Returns batch `index` of a block; leaves are `[capacity, ...]`."""

    def at(leaf: jax.Array) -> jax.Array:
        if leaf.shape[0] == 1:  # which needs no copy
            return lax.squeeze(leaf, (0,))
        return lax.dynamic_index_in_dim(leaf, index, axis=0, keepdims=False)

    return jax.tree.map(at, batches)


class LoopCarry(NamedTuple):
    """The values that a loop over updates carries."""

    state: State
    records: Any  # logs or outputs so far, in the form that the program carries
    taps: Taps  # so far


class BatchRange(NamedTuple):
    """The batches of a block from a step on."""

    batches: ArrayTree  # of the block
    start: Index  # first step in it


Computed: TypeAlias = tuple[PendingUpdate, Any, Taps]  # with records and taps
# (number of the update, carry) -> its gradients, not applied yet
Compute: TypeAlias = Callable[[jax.Array, LoopCarry], Computed]


def can_wait(update: Tapped) -> bool:
    """Whether an update may be applied an iteration later: applying it taps nothing."""
    return all(isinstance(key, Rows) for key in update.keys)


def run_until_halted(
    model: keras.Model,
    plan: Plan,
    count: jax.Array,
    compute: Compute,
    apply: Callable[[State, PendingUpdate], State],
    carry: LoopCarry,
) -> LoopCarry:
    """Runs updates up to the first with a gradient that is not finite, which is not applied.

    Args:
        model: the model that is trained.
        plan: says which gradients are inspected.
        count: number of updates; at least one.
        compute: returns the gradients of one update.
        apply: returns the state after an update.
        carry: state, records and taps before the first update.
    """

    def inspect(number: jax.Array, carry: LoopCarry) -> Computed:
        pending, records, taps = compute(number, carry)
        _, tapped = collecting(lambda: tap_update(model, plan, carry.state, pending.gradients))()
        tapped = packed(tapped)
        taps = taps.with_update(number, tapped)._replace(halted=found_non_finite(tapped))
        return pending, records, taps

    def iteration(
        values: tuple[jax.Array, State, Computed],
    ) -> tuple[jax.Array, State, Computed]:
        number, state, (pending, records, taps) = values
        state = apply(state, pending)
        return number + 1, state, inspect(number, LoopCarry(state, records, taps))

    def goes_on(values: tuple[jax.Array, State, Computed]) -> jax.Array:
        number, _, (_, _, taps) = values
        return (number < count) & ~taps.halted

    first = (jnp.int32(1), carry.state, inspect(jnp.int32(0), carry))
    _, state, (pending, records, taps) = lax.while_loop(goes_on, iteration, first)
    # A loop of one iteration or none: unlike a conditional it updates its operands in place.
    iterations = jnp.where(taps.halted, 0, 1)
    state = lax.fori_loop(0, iterations, lambda _, state: apply(state, pending), state)
    return LoopCarry(state, records, taps)


def unless(halted: jax.Array | None, new: State, old: State) -> State:
    """Returns `new`, or `old` where an update was halted. The choice fuses with the update."""
    if halted is None:
        return new
    return jax.tree.map(lambda n, o: jnp.where(halted, o, n), new, old)
