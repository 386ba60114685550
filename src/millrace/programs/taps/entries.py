"""Taps of one call of a program: an entry for each step, and for each update.

steps     [records, ...]             of the micro-batches
updates   [updates, ...]             of the updates among them

A queue that keeps only its newest element has one entry, which every step overwrites.
"""

from collections.abc import Hashable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import lax

from millrace.base.options import QueueMode
from millrace.base.pytrees import ArrayTree
from millrace.programs.taps.taps import Tapped

RecordTree = TypeVar("RecordTree")


class Taps(NamedTuple):
    """The values that a call has carried out, or arrays of zeros to be filled with them."""

    steps: Tapped = Tapped()
    updates: Tapped = Tapped()
    halted: Any = None  # whether an update must not be applied; None where updates never halt

    def with_step(self, index: int | jax.Array, tapped: Tapped) -> "Taps":
        """Returns these taps with those of micro-batch `index` of the call."""
        return self._replace(steps=tapped_at(self.steps, index, tapped)) if tapped else self

    def with_update(self, index: int | jax.Array, tapped: Tapped) -> "Taps":
        """Returns these taps with those of update `index` of the call."""
        return self._replace(updates=tapped_at(self.updates, index, tapped)) if tapped else self


class CallResult(NamedTuple):
    """The result, steps and taps of one call of compiled code, or of one micro-batch."""

    result: Any  # logs or outputs
    steps: int
    records: int  # length of the result's first axis, where every step has one
    first: int = 0  # of these, where replicas before it had no batch
    taps: Taps = Taps()  # entries of all `steps` from `first` on, and of their updates
    updates: int = 0  # that ended in this call


# Of the taps of one call, which begins by filling these bytes with zeros, used or not.
MAX_BYTES = 2**21


def max_tapped_steps(step: Tapped, update: Tapped, records: int, update_steps: int) -> int:
    """Returns the most steps of a call that returns their taps.

    An update is not divided, whatever it taps: in programs of their own its parts are rounded
    otherwise.

    Args:
        step: specs of the taps of one micro-batch.
        update: specs of the taps of one update.
        records: steps of a full execution.
        update_steps: steps of one update, the fewest that a call runs.
    """
    in_step, in_update = stacked_bytes(step), stacked_bytes(update)
    if not in_step + in_update:
        return records
    fitting = MAX_BYTES // (in_step * update_steps + in_update)
    return max(1, min(fitting, records // update_steps)) * update_steps


def entries_of(key: Hashable, number: int) -> int:
    """Returns the entries of one key in a call of `number` steps."""
    return min(number, 1) if has_one_entry(key) else number


def has_one_entry(key: Hashable) -> bool:
    """Whether the taps of a key have one entry: those of a queue that keeps only the newest."""
    return getattr(key, "mode", None) is QueueMode.LAST


def stacked_bytes(tapped: Tapped) -> int:
    """Returns the bytes that each further step adds to the taps of a call."""
    stacked = [value for key, value in tapped.items() if not has_one_entry(key)]
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(stacked))


def empty_entries(specs: Tapped, number: int, *lead: int) -> Tapped:
    """Returns zeros for `number` entries, `[entries, *lead, ...]`."""

    def zeros(key: Hashable, value: ArrayTree) -> Any:
        shape = (entries_of(key, number), *lead)
        return jax.tree.map(lambda s: jnp.zeros((*shape, *s.shape), s.dtype), value)

    return Tapped(specs.keys, tuple(zeros(key, value) for key, value in specs.items()))


def tapped_at(records: Tapped, index: int | jax.Array, tapped: Tapped) -> Tapped:
    """Stores taps as entry `index`; of a queue that keeps the newest, as its only one."""
    values = [
        record_at(record, 0 if has_one_entry(key) else index, value)
        for (key, record), value in zip(records.items(), tapped.values, strict=True)
    ]
    return Tapped(records.keys, tuple(values))


def record_at(records: RecordTree, index: int | jax.Array, value: ArrayTree) -> RecordTree:
    """Stores `value` as entry `index` of `records`; leaves are `[capacity, ...]`."""

    def store(leaf: jax.Array, new: jax.Array) -> jax.Array:
        new = new.astype(leaf.dtype)
        if leaf.shape[0] == 1:  # all of them
            return new[None]
        return lax.dynamic_update_index_in_dim(leaf, new, index, 0)

    return jax.tree.map(store, records, value)
