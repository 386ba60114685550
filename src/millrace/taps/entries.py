"""What taps leave in one call of a program: an entry for each step, and for each update.

steps     [records, ...]             of the micro-batches
updates   [updates, ...]             of the updates among them
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from millrace.taps.taps import Tapped


class Taps(NamedTuple):
    """What a call has carried out, or the room for it."""

    steps: Tapped = Tapped()
    updates: Tapped = Tapped()
    halted: Any = None  # whether an update was found that must not be applied; None: never asked

    def with_step(self, index: Any, tapped: Tapped) -> "Taps":
        """Returns these with what micro-batch `index` of the call has tapped."""
        return self._replace(steps=record_at(self.steps, index, tapped)) if tapped else self

    def with_update(self, index: Any, tapped: Tapped) -> "Taps":
        """Returns these with what update `index` of the call has tapped."""
        return self._replace(updates=record_at(self.updates, index, tapped)) if tapped else self


# Of the results of one call. Room is cleared in every call, whether or not it is used.
MAX_BYTES = 2**21


def steps_in_room(step: Tapped, records: int, update_steps: int) -> int:
    """Returns how many steps a call may have whose taps it returns.

    Args:
        step: specs of what one micro-batch taps.
        records: steps of a full execution.
        update_steps: steps that a call runs at least: those of one update.
    """
    nbytes = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(step))
    if not nbytes:
        return records
    fitting = max(1, min(records, MAX_BYTES // nbytes))
    return max(1, fitting // update_steps) * update_steps


def room(step: Tapped, steps: int, update: Tapped, updates: int, halts: bool) -> Taps:
    """Returns room for the taps of one call.

    Args:
        step: specs of what one micro-batch taps.
        steps: micro-batches in a call, at most.
        update: specs of what an update taps.
        updates: updates in a call, at most.
        halts: whether updates are looked at before they are applied.
    """
    halted = jnp.bool_(False) if halts else None
    return Taps(_zeros(step, steps), _zeros(update, updates), halted)


def _zeros(specs: Tapped, number: int) -> Any:
    return jax.tree.map(lambda s: jnp.zeros((number, *s.shape), s.dtype), specs)


def record_at(records: Any, index: Any, value: Any) -> Any:
    """Stores `value` as entry `index` of `records`; leaves are `[capacity, ...]`."""
    return jax.tree.map(
        lambda leaf, new: lax.dynamic_update_index_in_dim(leaf, new.astype(leaf.dtype), index, 0),
        records,
        value,
    )
