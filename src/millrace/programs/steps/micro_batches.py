"""One batch in parts: the gradients, losses and metrics of a batch in the memory of fewer rows.

    batch [256 rows]   ->  rows 0-63     64-127     128-191    192-255
    weights            ->  gradients  +  gradients  + ...                  / 4   one update
    metrics, seeds     ->  after part 0  ->  after part 1  -> ...

The gradient of a mean over rows is the mean of the parts' gradients, weighed by their rows. Losses
that divide by a number of the data (valid elements of a mask, sums of sample weights) need that
number of the whole batch before the first gradient. So if there are any, a pass over the parts
adds these numbers up first; it computes nothing else, which for a mask made of the inputs is next
to nothing.

Layers of float8 measure the gradients of their outputs, and a scaled loss is as large as float16
can bear. So these gradients must be those of the whole batch: there the loss of a part is
multiplied by the part's share before its gradient, not the gradients after it.

A value of the state that follows from itself alone, such as the seed of a dropout layer, advances
in a loop of its own, so that replicas still find by how much a step advances it.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import keras
from jax import lax

from millrace._compat.jaxpr import as_function, needed, primitive_counts, trace, used
from millrace._compat.keras_losses import LossParts, losses_of_part
from millrace.base.options import Reduction
from millrace.base.pytrees import ArrayTree, SpecTree
from millrace.errors import PlanError, TapError
from millrace.programs.plan import BatchSpec, Division, LoopForm, Plan, choose_loop_form
from millrace.programs.recomputation.step import accumulating_value_and_grad, has_choice
from millrace.programs.steps.accumulate import Gradients, make_accumulator
from millrace.programs.steps.loss_weights import Losses, report, with_divisors
from millrace.programs.steps.own_step import check_whole, compute_gradients, own_step
from millrace.programs.steps.repetition import Index, repeat
from millrace.programs.steps.state import State, with_dtypes_of
from millrace.programs.taps.taps import collecting, is_open
from millrace.programs.taps.tensors import loss_scale

# Differentiates a function of `(loss, auxiliary)`.
Differentiate = Callable[[Callable[..., Any]], Callable[..., Any]]


class BatchResult(NamedTuple):
    """The results of a batch, or of a part of one."""

    gradients: Gradients
    non_trainable: list[jax.Array]
    metrics: list[jax.Array]
    logs: ArrayTree
    loss: jax.Array  # as it was differentiated
    divisors: Sequence[jax.Array] = ()  # of the losses of a batch


class _PartsCarry(NamedTuple):
    changed: list[jax.Array]  # non-trainable values that a part changes by more than themselves
    metrics: list[jax.Array]
    logs: ArrayTree
    gradients: Gradients
    loss: jax.Array


def compute_in_parts(
    model: keras.Model,
    plan: Plan,
    state: State,
    batch: ArrayTree,
    differentiate: Differentiate | None,
) -> BatchResult:
    """Runs one batch forward and backward, part by part.

    Args:
        model: a compiled Keras model.
        plan: divides the batch.
        state: trainable, non-trainable, optimizer and metric values.
        batch: x, y and sample weights, `[rows, ...]`.
        differentiate: returns `((loss, auxiliary), gradients)` of a function; None is JAX's own.

    Raises:
        PlanError: if an array of the batch has other rows than the batch.
        TapError: if the model taps values, which a part cannot carry out.
    """
    division = plan.division
    check_rows(plan.accumulation.micro_batch, plan.batch)
    if (own := own_step(model, plan, state)) is not None:
        check_whole(model, own.turns, plan)
    totals = _totals(model, division, state, batch)
    accumulation = replace(plan.accumulation, reduction=Reduction.MEAN)
    accumulator = make_accumulator(model.trainable_variables, accumulation)
    shares_first = _shares_first(model, state)

    def part_with(rows: int) -> _Part:
        weight = 1.0 if shares_first else rows / division.rows

        def add(gradients: Gradients, accumulated: Gradients) -> Gradients:
            return accumulator.add(accumulated, gradients, weight)

        sums = jax.eval_shape(accumulator.zeros)
        return _Part(model, plan, differentiate, add, sums, rows, state, batch, totals)

    part = part_with(division.rows)
    changes = part.changes(state, division.count)

    def body(index: Index, carry: _PartsCarry) -> _PartsCarry:
        rows = part_of(batch, index * division.rows, division.rows)
        if not form.is_loop:
            carry, rows = lax.optimization_barrier((carry, rows))
        non_trainable = changes.before(index, carry.changed)
        found = part.run(non_trainable, carry.metrics, rows, carry.gradients)
        return _PartsCarry(
            changes.carried(found.non_trainable),
            found.metrics,
            found.logs,
            found.gradients,
            carry.loss + found.loss,
        )

    carry = _PartsCarry(
        changes.carried(state.non_trainable),
        list(state.metric),
        jax.tree.map(lambda spec: jnp.zeros(spec.shape, spec.dtype), part.specs.logs),
        accumulator.zeros(),
        jnp.zeros((), part.specs.loss.dtype),
    )
    form = part.form if part.form.is_loop else LoopForm(unroll=division.count)
    carry = repeat(body, carry, division.count, form)
    non_trainable = changes.before(division.count, carry.changed)
    _, metrics, logs, gradients, loss = carry
    if division.rest:
        weight = 1.0 if shares_first else division.rest / division.rows
        rows = part_of(batch, division.count * division.rows, division.rest)
        found = part_with(division.rest).run(non_trainable, metrics, rows, gradients)
        gradients, non_trainable, metrics, logs, *_ = found
        loss = loss + found.loss * weight
    share = 1.0 if shares_first else division.rows / division.batch_rows
    gradients = accumulator.finish(gradients, share)
    return BatchResult(gradients, non_trainable, metrics, logs, loss * share, totals)


def part_of(batch: ArrayTree, start: Index, rows: int) -> ArrayTree:
    """Returns `rows` rows of a batch, from row `start` on."""
    return jax.tree.map(lambda leaf: lax.dynamic_slice_in_dim(leaf, start, rows, axis=0), batch)


class _Part:
    """The traced step of a part.

    Attributes:
        specs: of its results.
        form: of a loop over parts.
    """

    def __init__(
        self,
        model: keras.Model,
        plan: Plan,
        differentiate: Differentiate | None,
        add: Callable[[Gradients, Gradients], Gradients],
        sums: Gradients,
        rows: int,
        state: State,
        batch: ArrayTree,
        totals: Sequence[jax.Array],
    ) -> None:
        self._state, self._totals = state, totals
        share = rows / plan.batch.rows
        factor = share if _shares_first(model, state) else None

        def compute(
            state: State, part: ArrayTree, totals: Sequence[jax.Array], sums: Gradients
        ) -> BatchResult:
            losses: list[jax.Array] = []
            adding = accumulating_value_and_grad(plan, add, sums) if has_choice(plan) else None

            def of_part(function: Callable[..., Any]) -> Callable[..., Any]:
                return _of_part(function, adding or differentiate, factor, losses)

            with losses_of_part(LossParts(share, totals)):
                gradients, new, logs = compute_gradients(model, state, part, of_part)
            new = with_dtypes_of(new, state, model)
            logs = jax.tree.map(jnp.asarray, logs)
            sums = gradients if adding else add(gradients, sums)
            zero = jnp.zeros((), jnp.float32)  # of a step that shows no loss
            return BatchResult(
                list(sums), list(new.non_trainable), list(new.metric), logs, sum(losses, zero)
            )

        arguments = (state, _rows_of(batch, rows), totals, sums)
        refusing = _without_taps(compute) if is_open() else compute
        self._graph, self.specs = trace(refusing, *jax.tree.map(_spec, arguments))
        self._tree = jax.tree.structure(self.specs)
        self._run = as_function(self._graph)
        primitives = primitive_counts(self._graph.equations)
        self.form = choose_loop_form(plan.mode, plan.group.platform, primitives)

    def run(
        self,
        non_trainable: Sequence[jax.Array],
        metrics: Sequence[jax.Array],
        part: ArrayTree,
        sums: Gradients,
    ) -> BatchResult:
        """Runs forward and backward of a part, and adds its gradients to `sums`."""
        state = self._state.replace(non_trainable=non_trainable, metric=metrics)
        arguments = (state, part, self._totals, sums)
        return jax.tree.unflatten(self._tree, self._run(*jax.tree.leaves(arguments)))

    def changes(self, state: State, count: int) -> "_Changes":
        """Returns how parts change the non-trainable values."""
        inputs = self._graph.invars[len(state.trainable) :]
        results = self._graph.outvars[len(self.specs.gradients) :]
        own: dict[int, jax.Array] = {}
        changed: list[int] = []
        for number, (value, before, after) in enumerate(
            zip(state.non_trainable, inputs, results, strict=False)
        ):
            graph = used(self._graph, [after])
            if after is not before and graph.invars == (before,):
                own[number] = _advanced(as_function(graph), value, count)
            elif after is not before:
                changed.append(number)
        return _Changes(list(state.non_trainable), own, changed)


@dataclass(frozen=True, slots=True)
class _Changes:
    """The non-trainable values before each part."""

    values: list[jax.Array]  # before the first part
    own: dict[int, jax.Array]  # [parts + 1, ...] of those that follow from themselves alone
    changed: list[int]  # numbers of those that a loop carries; the others stay as they are

    def carried(self, values: Sequence[jax.Array]) -> list[jax.Array]:
        """Returns those of all values that a loop carries."""
        return [values[number] for number in self.changed]

    def before(self, index: Index, carried: Sequence[jax.Array]) -> list[jax.Array]:
        """Returns all values before part `index`."""
        values = list(self.values)
        for number, stacked in self.own.items():
            values[number] = stacked[index]
        for number, value in zip(self.changed, carried, strict=True):
            values[number] = value
        return values


def _shares_first(model: keras.Model, state: State) -> bool:
    overwrites = any(variable.overwrite_with_gradient for variable in model.trainable_variables)
    return overwrites or loss_scale(model, state.optimizer) is not None


def _advanced(run: Callable[..., Any], value: jax.Array, count: int) -> jax.Array:
    def advance(value: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
        return run(value)[0], value

    last, values = lax.scan(advance, value, None, length=count)
    return jnp.concatenate([values, last[None]])


def _of_part(
    function: Callable[..., Any],
    differentiate: Differentiate | None,
    factor: float | None,
    losses: list[jax.Array],
) -> Callable[..., Any]:
    """Returns a differentiated function whose loss is multiplied by a factor."""

    def within(*args: Any, **kwargs: Any) -> Any:
        loss, auxiliary = function(*args, **kwargs)
        return loss if factor is None else loss * factor, auxiliary

    value_and_grad = differentiate or functools.partial(jax.value_and_grad, has_aux=True)
    differentiated = value_and_grad(within)

    def run(*args: Any, **kwargs: Any) -> Any:
        (loss, auxiliary), gradients = differentiated(*args, **kwargs)
        losses.append(loss)
        return (loss if factor is None else loss / factor, auxiliary), gradients  # for its logs

    return run


def _totals(
    model: keras.Model, division: Division, state: State, batch: ArrayTree
) -> list[jax.Array]:
    """Returns the numbers of the whole batch that losses divide by, in the order of the losses."""

    def divisors(state: State, part: ArrayTree) -> list[jax.Array]:
        def forward(function: Callable[..., Any]) -> Callable[..., Any]:
            return lambda *args, **kwargs: (function(*args, **kwargs), args[0])

        compute, losses = with_divisors(compute_gradients), Losses(taps=True)
        _, found = compute(model, state, part, forward, losses=losses)
        report(losses)
        return found

    def of_part(rows: int) -> Callable[[Index], list[jax.Array]]:
        specs = jax.tree.map(_spec, (state, _rows_of(batch, rows)))
        graph, _ = trace(divisors, *specs)
        run = as_function(needed(graph))
        return lambda start: run(*jax.tree.leaves((state, part_of(batch, start, rows))))

    rows, whole = division.rows, of_part(division.rows)
    specs = jax.eval_shape(whole, 0)
    if not specs:
        return []

    def body(index: Index, totals: list[jax.Array]) -> list[jax.Array]:
        return jax.tree.map(jnp.add, totals, whole(index * rows))

    zeros = [jnp.zeros(spec.shape, spec.dtype) for spec in specs]
    totals = repeat(body, zeros, division.count, LoopForm(unroll=None))
    if division.rest:
        totals = jax.tree.map(jnp.add, totals, of_part(division.rest)(division.count * rows))
    return totals


def check_rows(micro_batch: int | str, batch: BatchSpec) -> None:
    """Refuses to divide a batch with an array that has other rows.

    Raises:
        PlanError: with the shape of the array.
    """
    for shape in batch.shapes:
        if not shape or shape[0] != batch.rows:
            raise PlanError(
                f"micro_batch={micro_batch} divides batches by their rows, and "
                f"one of {batch.rows} rows has an array of the shape {shape}. "
                "Give each array of the data one entry for each row, or set micro_batch='whole'."
            )


def _without_taps(compute: Callable[..., BatchResult]) -> Callable[..., BatchResult]:
    def run(*args: Any) -> BatchResult:
        computed, tapped = collecting(compute)(*args)
        if tapped:
            raise TapError(
                f"{tapped.keys[0]!r} takes a value in each step, and with micro_batch a step has "
                "several parts. Set micro_batch='whole' in set_gradient_accumulation_options(), "
                "and give fit a smaller batch_size with a larger "
                "gradient_accumulation_steps_per_replica instead."
            )
        return computed

    return run


def _rows_of(batch: ArrayTree, rows: int) -> SpecTree:
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct((rows, *leaf.shape[1:]), leaf.dtype), batch
    )


def _spec(leaf: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
