"""Taps of one call of a program: an entry for each step, and for each update.

steps     [records, ...]             of the micro-batches
updates   [updates, ...]             of the updates among them
"""

from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import lax

from millrace.pytrees import ArrayTree
from millrace.taps.taps import Tapped

RecordTree = TypeVar("RecordTree")


class Taps(NamedTuple):
    """The values that a call has carried out, or arrays of zeros to be filled with them."""

    steps: Tapped = Tapped()
    updates: Tapped = Tapped()
    halted: Any = None  # whether an update must not be applied; None where updates never halt

    def with_step(self, index: int | jax.Array, tapped: Tapped) -> "Taps":
        """Returns these taps with those of micro-batch `index` of the call."""
        return self._replace(steps=record_at(self.steps, index, tapped)) if tapped else self

    def with_update(self, index: int | jax.Array, tapped: Tapped) -> "Taps":
        """Returns these taps with those of update `index` of the call."""
        return self._replace(updates=record_at(self.updates, index, tapped)) if tapped else self


# Of the taps of one call, which begins by filling these bytes with zeros, used or not.
MAX_BYTES = 2**21


def max_tapped_steps(step: Tapped, records: int, update_steps: int) -> int:
    """Returns the most steps of a call that returns their taps.

    Args:
        step: specs of the taps of one micro-batch.
        records: steps of a full execution.
        update_steps: steps of one update, the fewest that a call runs.
    """
    nbytes = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(step))
    if not nbytes:
        return records
    fitting = max(1, min(records, MAX_BYTES // nbytes))
    return max(1, fitting // update_steps) * update_steps


def empty_taps(step: Tapped, steps: int, update: Tapped, updates: int, halts: bool) -> Taps:
    """Returns zeros for the taps of one call to fill.

    Args:
        step: specs of the taps of one micro-batch.
        steps: most micro-batches of a call.
        update: specs of the taps of an update.
        updates: most updates of a call.
        halts: whether an update may be refused for its gradients.
    """
    halted = jnp.bool_(False) if halts else None
    return Taps(_zeros(step, steps), _zeros(update, updates), halted)


def _zeros(specs: Tapped, number: int) -> Tapped:
    return jax.tree.map(lambda s: jnp.zeros((number, *s.shape), s.dtype), specs)


def record_at(
    records: RecordTree, index: int | jax.Array, value: "ArrayTree | Tapped"
) -> RecordTree:
    """Stores `value` as entry `index` of `records`; leaves are `[capacity, ...]`."""
    return jax.tree.map(
        lambda leaf, new: lax.dynamic_update_index_in_dim(leaf, new.astype(leaf.dtype), index, 0),
        records,
        value,
    )
