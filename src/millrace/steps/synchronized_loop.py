"""Updates with statistics of all micro-batches, for a model in one piece on one device.

`SynchronizedLoop` takes the place of `UpdateLoop`. An update that no single block holds whole takes
batches of several blocks, which may be of different shapes.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import keras

from millrace.plan import LoopForm, Plan
from millrace.pytrees import ArrayTree
from millrace.steps.accumulate import Accumulator
from millrace.steps.loop import (
    After,
    BatchRange,
    Index,
    LoopCarry,
    PendingUpdate,
    batch_at,
    repeat,
)
from millrace.steps.state import Values
from millrace.steps.step import prepared
from millrace.steps.synchronized_statistics import SynchronizedForward, loss_weights
from millrace.steps.synchronized_update import SynchronizedUpdate
from millrace.taps.entries import Taps


class SynchronizedPart(NamedTuple):
    """Consecutive micro-batches of an update, of one block."""

    forward: SynchronizedForward
    batches: BatchRange
    steps: int
    rows: int  # of a micro-batch


class SynchronizedLoop:
    """Runs the micro-batches of updates; the counterpart of `UpdateLoop`."""

    def __init__(
        self,
        model: keras.Model,
        plan: Plan,
        forward: SynchronizedForward,
        record: Callable[[ArrayTree, Index, ArrayTree], ArrayTree],
        accumulator: Callable[[], Accumulator],
    ):
        """Takes what all updates share.

        Args:
            model: a compiled Keras model.
            plan: describes the program.
            forward: of the plan's batch.
            record: `(records, index of the step in the call, logs)` -> records.
            accumulator: returns the accumulator of the model's weights.
        """
        self._model, self._plan, self._forward = model, plan, forward
        self._record, self._accumulator = record, accumulator

    def gradients(
        self, before: LoopCarry, batches: BatchRange, index: Index, form: LoopForm
    ) -> tuple[PendingUpdate, ArrayTree, Taps]:
        """Returns an update to apply; see `UpdateLoop.gradients`."""
        steps = self._plan.accumulation.steps
        moved = BatchRange(batches.batches, batches.start + index)
        part = SynchronizedPart(self._forward, moved, steps, self._plan.batch.rows)
        return self.of_parts(before, [part], index, form)

    def of_parts(
        self, before: LoopCarry, parts: Sequence[SynchronizedPart], index: Index, form: LoopForm
    ) -> tuple[PendingUpdate, ArrayTree, Taps]:
        """Returns an update whose micro-batches come from several blocks.

        Args:
            before: state, records and taps that the update begins with.
            parts: of the update, in order.
            index: first step of the update in the call.
            form: of the loops over micro-batches.
        """
        trainable, non_trainable, optimizer, metrics = before.state
        values = dict(enumerate(optimizer))
        seeds, scale = loss_weights(self._plan, [(part.rows, part.steps) for part in parts])
        equal = [
            part.forward.equal_batches(
                values,
                lambda number, part=part: batch_at(
                    part.batches.batches, part.batches.start + number
                ),
                jnp.full(part.steps, seed, jnp.float32),
            )
            for part, seed in zip(parts, seeds, strict=True)
        ]
        changing = [*non_trainable, *metrics]
        update = SynchronizedUpdate(equal, list(trainable), changing, list, not form.is_loop)
        accumulator = self._accumulator()
        result = update.run(accumulator.zeros())
        gradients = accumulator.finish(result.gradients, scale)
        gradients = prepared(self._model.optimizer, gradients, self._model.trainable_variables)
        records, taps = before.records, before.taps
        for part, leaves in zip(parts, result.outputs, strict=True):
            logs, tapped = part.forward.outputs(leaves)
            first = index

            def store(
                number: Index,
                carry: tuple[Any, Taps],
                outputs: Any = (logs, tapped),
                first: Index = first,
            ) -> tuple[Any, Taps]:
                records, taps = carry
                mine, own = jax.tree.map(lambda leaf: leaf[number], outputs)
                records = self._record(records, first + number, mine)
                return records, taps.with_step(first + number, own)

            records, taps = repeat(store, (records, taps), part.steps, LoopForm(unroll=None))
            index = index + part.steps
        size = len(list(non_trainable))
        after = After(Values(result.changing[:size]), Values(result.changing[size:]))
        return PendingUpdate(gradients, after), records, taps
