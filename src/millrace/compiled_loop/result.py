"""What a call of a runner gives back, and where its execution was halted.

The program compares before it applies (`steps/tapped_step.py`), so the state is that from
before the update, and what the update was made of is still in the blocks.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from millrace.feeds.block import Block
from millrace.records.tensors import COUNTS
from millrace.steps.state import State
from millrace.taps.entries import Taps
from millrace.taps.tensors import Rows


class CallResult(NamedTuple):
    """What one call of compiled code, or one micro-batch, gave: its result, and its steps."""

    result: Any  # logs or outputs
    steps: int
    records: int  # length of the result's first axis, where every step has one
    first: int = 0  # of these, where replicas before it had no batch
    taps: Taps = Taps()  # entries of all `steps` from `first` on, and of their updates
    updates: int = 0  # that ended in this part


# Takes parts that carry taps, in order, as soon as they are dispatched.
TapSink = Callable[[Sequence[CallResult]], None]


def nowhere(parts: Sequence[CallResult]) -> None:
    """Takes parts whose taps nobody wants."""
    del parts


BlockSpan = tuple[Block, int, int]  # block, first step, steps


@dataclass(frozen=True, slots=True)
class Halted:
    """An update that was not applied."""

    batches: tuple[Any, ...]  # its micro-batches, in host memory
    step: int  # of the execution, the first of the update


def is_halted(taps: Taps) -> bool:
    """Whether a call has halted. Waits for it."""
    return taps.halted is not None and bool(np.asarray(taps.halted))


def updates_before(taps: Taps) -> int:
    """Returns how many updates of a call that has halted were applied."""
    for key, value in taps.updates.items():
        if isinstance(key, Rows):
            return int(np.argmax((np.asarray(value)[:, :, COUNTS] > 0).any(axis=(1, 2))))
    return 0


def batches_of(spans: Iterable[BlockSpan], replicas: int) -> tuple[Any, ...]:
    """Returns copies of the micro-batches of some steps, in host memory."""
    found = []
    for block, first, steps in spans:
        for step in range(first, first + steps):
            place = (step,) if replicas == 1 else divmod(step, replicas)
            found.append(jax.tree.map(lambda leaf, p=place: np.array(leaf[p]), block.batches))
    return tuple(found)


def kept(state: State) -> State:
    """Returns copies of the values that change with every micro-batch; the rest is empty.

    For an update that takes several calls, each of which gives up the memory of the values before.
    """
    changing = (1, len(state) - 1)
    return tuple(
        jax.tree.map(jnp.copy, part) if role in changing else part
        for role, part in enumerate(state)
    )


def with_kept(state: State, before: State) -> State:
    """Returns a state whose values that change with every micro-batch are those from before."""
    return (state[0], before[1], *state[2:-1], before[-1])


def halted_in_call(
    parts: list[CallResult], block: Block, start: int, update_steps: int, replicas: int
) -> Halted:
    """Shortens the last of some parts, a call that has halted, to the update that did it.

    Args:
        parts: of the execution so far.
        block: that the call has run.
        start: its first step there.
        update_steps: steps of an update.
        replicas: that run them.
    """
    *before, last = parts
    applied = updates_before(last.taps)
    parts[-1] = last._replace(steps=(applied + 1) * update_steps, updates=applied + 1)
    batches = batches_of([(block, start + applied * update_steps, update_steps)], replicas)
    return Halted(batches, sum(part.steps for part in before) + applied * update_steps)


def halted_in_calls(parts: list[CallResult], spans: Iterable[BlockSpan], replicas: int) -> Halted:
    """Returns what an update of several calls was made of."""
    spans = list(spans)
    steps = sum(steps for _, _, steps in spans)
    return Halted(batches_of(spans, replicas), sum(part.steps for part in parts) - steps)
