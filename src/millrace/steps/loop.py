"""Several steps in one program, and the micro-batches of one update."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import lax

from millrace.plan import LoopForm, Plan
from millrace.steps.accumulate import Accumulator, coefficient_of, scale_of
from millrace.steps.state import State, Values
from millrace.taps.entries import Taps

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


class After(NamedTuple):
    """The values of the state that micro-batches change, after those of one update."""

    non_trainable: Values
    metrics: Values

    def put_into(self, state: State) -> State:
        """Returns a state with these values."""
        return (state[0], self.non_trainable, state[2], self.metrics)


class UpdateLoop:
    """Runs the micro-batches of an update whose batches are all in one block.

    Args:
        step: `(state, batch)` -> `(gradients, state, logs)` and taps.
        record: adds the logs of a step to records.
        accumulator: of the model's weights.
        plan: of the program.
    """

    def __init__(
        self,
        step: Callable[..., Any],
        record: Callable[[Any, Any, Any], Any],
        accumulator: Callable[[], Accumulator],
        plan: Plan,
    ):
        self._step, self._record, self._accumulator = step, record, accumulator
        self._accumulation = plan.accumulation

    def gradients(
        self,
        before: State,
        records: Any,
        taps: Taps,
        batches: Any,
        start: Any,
        index: Any,
        form: LoopForm,
    ) -> tuple[Any, After, Any, Taps]:
        """Returns the gradients to apply, and what the micro-batches have changed.

        Args:
            before: the state that the update begins with.
            records: of the steps before.
            taps: of the steps before.
            batches: of the block.
            start: first step of the call in it.
            index: first step of the update in the call.
            form: of the loop over micro-batches; unrolled code has as many as the update.
        """
        steps = self._accumulation.steps
        trainable, non_trainable, optimizer, metrics = before

        # Weights and optimizer state stand still within an update: they stay out of its carry.
        def body(turn: Any, carry: Any) -> Any:
            (non_trainable, metrics), accumulated, records, taps = carry
            state = (trainable, non_trainable, optimizer, metrics)
            result, tapped = self._step(state, batch_at(batches, start + index + turn))
            gradients, (_, non_trainable, _, metrics), logs = result
            records = self._record(records, index + turn, logs)
            taps = taps.with_step(index + turn, tapped)
            accumulated = self._add(accumulated, gradients, turn)
            return After(non_trainable, metrics), accumulated, records, taps

        carry = (After(non_trainable, metrics), self._zeros(), records, taps)
        if steps == 1:
            carry = body(0, carry)
        else:
            carry = repeat(body, carry, steps, form if form.is_loop else LoopForm(unroll=steps))
        after, accumulated, records, taps = carry
        return self._finish(accumulated), after, records, taps

    # An update of one step has nothing to add up.
    def _zeros(self) -> Any:
        return self._accumulator().zeros() if self._accumulation.steps > 1 else None

    def _add(self, accumulated: Any, gradients: Any, turn: Any) -> Any:
        if accumulated is None:
            return list(gradients)
        reduction = self._accumulation.reduction
        given = 0.0 if reduction.is_running else 1.0
        coefficient = coefficient_of(reduction, given, turn)
        return self._accumulator().add(accumulated, gradients, coefficient)

    def _finish(self, accumulated: Any) -> Any:
        steps, reduction = self._accumulation.steps, self._accumulation.reduction
        if steps == 1:
            return accumulated
        return self._accumulator().finish(accumulated, scale_of(reduction, steps, 1))
