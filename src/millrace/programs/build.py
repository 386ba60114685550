"""Plan -> programs.

    name         arguments                                    results
    run          state, batches, start, count                 state, result
    accumulate   state, accumulated, batches, start, count,   state, accumulated, result
                 coefficient
    zeros        state                                        accumulated
    apply        state, accumulated, scale, steps             state

`run` is the path of nearly every step: `count` steps of a block from `start` on, as whole updates.
The others are for windows that no single block holds whole: the shorter one at the end of an
epoch, and one whose last batch has another shape. `result` is the logs after the last step, or
with `step_logs` and when predicting those of every step, `[records, ...]`.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import keras
from jax import lax

from millrace._compat.jaxpr import primitive_counts
from millrace.plan import LoopForm, Mode, Plan, choose_loop_form
from millrace.programs.accumulate import make_accumulator, scale_of
from millrace.programs.loop import batch_at, record_at, repeat
from millrace.programs.state import State
from millrace.programs.step import (
    final_logs,
    logs_follow_from_metrics,
    make_gradient_step,
    make_step,
)
from millrace.programs.update import apply_gradients


@dataclass(frozen=True, slots=True)
class Program:
    """A pure function with the specs of its arguments."""

    name: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]  # trees of jax.ShapeDtypeStruct
    unrolled: int | None  # turns, where it is not a loop
    donated: tuple[int, ...]  # positions of arguments whose memory the results reuse
    results: Any = None  # shardings of the results, where the group has several devices


class ProgramBuilder:
    """Makes the programs of one plan. The step is traced once, however many are made of it."""

    def __init__(self, model: keras.Model, plan: Plan, state: State):
        """Traces one step.

        Args:
            model: a compiled Keras model.
            plan: what the programs are to do.
            state: specs of the state, as trees of `jax.ShapeDtypeStruct`.
        """
        self._model = model
        self._plan = plan
        self._state = state
        self._batches = batch_specs(plan, (plan.capacity,))
        self._accumulates = plan.mode is Mode.TRAIN and plan.accumulation.steps > 1
        make = make_gradient_step(model) if self._accumulates else make_step(model, plan.mode)
        self._step = jax.jit(make)
        begin = time.perf_counter()
        traced = self._step.trace(state, batch_specs(plan, ()))
        self.trace_seconds = time.perf_counter() - begin
        self._step_result = traced.out_info[-1]
        # What a loop must carry from step to step besides state.
        self._logs_at_end = not plan.each_step and logs_follow_from_metrics(model, plan.mode)
        self.form = choose_loop_form(
            plan.mode, plan.group.platform, primitive_counts(traced.jaxpr.jaxpr.eqns)
        )

    def run(self, form: LoopForm) -> Program:
        """`count` steps as whole updates. Unrolled, the form counts updates."""
        window = self._plan.accumulation.steps if self._accumulates else 1
        turn = self._window if self._accumulates else self._plain_step

        def run(state: State, batches: Any, start: Any, count: Any) -> tuple[State, Any]:
            def body(update: Any, carry: tuple[State, Any]) -> tuple[State, Any]:
                return turn(carry, batches, start, update * window, form)

            carry = (state, self._first_records())
            state, records = repeat(body, carry, count // window, form)
            return state, self._result(state, records)

        specs = (self._state, self._batches, _INDEX, _INDEX)
        return self._program("run", run, specs, (0,), form.unroll)

    def accumulate(self, form: LoopForm) -> Program:
        """`count` micro-batches of a window. Unrolled, the form counts micro-batches."""
        accumulator = make_accumulator(self._model.trainable_variables, self._plan.accumulation)

        def accumulate(
            state: State, accumulated: Any, batches: Any, start: Any, count: Any, coefficient: Any
        ) -> tuple[State, Any, Any]:
            def body(index: Any, carry: Any) -> Any:
                state, accumulated, records = carry
                gradients, state, logs = self._step(state, batch_at(batches, start + index))
                accumulated = accumulator.add(accumulated, gradients, coefficient)
                return state, accumulated, self._record(records, index, logs)

            carry = (state, accumulated, self._first_records())
            state, accumulated, records = repeat(body, carry, count, form)
            return state, accumulated, self._result(state, records)

        specs = (self._state, self._accumulated(), self._batches, _INDEX, _INDEX, _FACTOR)
        return self._program("accumulate", accumulate, specs, (0, 1), form.unroll)

    def zeros(self) -> Program:
        """What a window accumulates into."""
        accumulator = make_accumulator(self._model.trainable_variables, self._plan.accumulation)

        def zeros(state: State) -> Any:
            del state
            return accumulator.zeros()

        return self._program("zeros", zeros, (self._state,), ())

    def apply(self) -> Program:
        """The update at the end of a window."""
        accumulator = make_accumulator(self._model.trainable_variables, self._plan.accumulation)

        def apply(state: State, accumulated: Any, scale: Any, steps: Any) -> State:
            del steps
            return apply_gradients(self._model, state, accumulator.finish(accumulated, scale))

        return self._program(
            "apply", apply, (self._state, self._accumulated(), _FACTOR, _INDEX), (0,)
        )

    def _plain_step(
        self, carry: tuple[State, Any], batches: Any, start: Any, index: Any, form: LoopForm
    ) -> tuple[State, Any]:
        del form
        state, records = carry
        state, result = self._step(state, batch_at(batches, start + index))
        return state, self._record(records, index, result)

    def _window(
        self, carry: tuple[State, Any], batches: Any, start: Any, index: Any, form: LoopForm
    ) -> tuple[State, Any]:
        accumulation = self._plan.accumulation
        accumulator = make_accumulator(self._model.trainable_variables, accumulation)
        (trainable, non_trainable, optimizer, metrics), records = carry

        # Weights and optimizer state stand still within a window: they stay out of its carry.
        def body(turn: Any, inner: Any) -> Any:
            non_trainable, metrics, accumulated, records = inner
            state = (trainable, non_trainable, optimizer, metrics)
            batch = batch_at(batches, start + index + turn)
            gradients, (_, non_trainable, _, metrics), logs = self._step(state, batch)
            accumulated = accumulator.add(accumulated, gradients, 1.0)
            records = self._record(records, index + turn, logs)
            return non_trainable, metrics, accumulated, records

        inner = (non_trainable, metrics, accumulator.zeros(), records)
        inner_form = form if form.is_loop else LoopForm(unroll=accumulation.steps)
        inner = repeat(body, inner, accumulation.steps, inner_form)
        non_trainable, metrics, accumulated, records = inner
        gradients = accumulator.finish(
            accumulated, scale_of(accumulation.reduction, accumulation.steps)
        )
        state = (trainable, non_trainable, optimizer, metrics)
        return apply_gradients(self._model, state, gradients), records

    def _first_records(self) -> Any:
        if self._logs_at_end:
            return None
        lead = (self._plan.records,) if self._plan.each_step else ()
        return jax.tree.map(lambda s: jnp.zeros((*lead, *s.shape), s.dtype), self._step_result)

    def _record(self, records: Any, index: Any, result: Any) -> Any:
        if self._logs_at_end:
            return None
        if self._plan.each_step:
            return record_at(records, index, result)
        return jax.tree.map(lambda old, new: new.astype(old.dtype), records, result)

    def _result(self, state: State, records: Any) -> Any:
        if self._logs_at_end:
            return final_logs(self._model, state)
        if self._plan.mode is Mode.PREDICT and not self._plan.step_logs:
            return jax.tree.map(merge_steps, records)
        return records

    def _accumulated(self) -> Any:
        return jax.eval_shape(
            make_accumulator(self._model.trainable_variables, self._plan.accumulation).zeros
        )

    def _program(
        self,
        name: str,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        donated: tuple[int, ...],
        unrolled: int | None = None,
    ) -> Program:
        name = f"{self._plan.mode.value}_{name}"
        return Program(name, function, arguments, unrolled, donated)


_INDEX = jax.ShapeDtypeStruct((), jnp.int32)
_FACTOR = jax.ShapeDtypeStruct((), jnp.float32)


def batch_specs(plan: Plan, lead: tuple[int, ...]) -> Any:
    """Returns the specs of a batch, or with `lead` of a block, whose leaves are `[*lead, ...]`."""
    leaves = [
        jax.ShapeDtypeStruct((*lead, *shape), dtype)
        for shape, dtype in zip(plan.batch.shapes, plan.batch.dtypes, strict=True)
    ]
    return jax.tree.unflatten(plan.batch.treedef, leaves)


def merge_steps(leaf: jax.Array) -> jax.Array:
    """`[records, rows, ...]` -> `[records * rows, ...]`, as Keras concatenates predictions."""
    return lax.collapse(leaf, 0, 2) if leaf.ndim > 1 else leaf
