"""One update whose micro-batches share their statistics: forward and backward, level by level.

    forward     level 0: m0 m1 m2 | statistics | level 1: m0 m1 m2 | statistics | ...
    last level  m0 m1 m2, each forward and at once backward
    backward    ... level 1: m0 m1 m2 | cotangents of statistics | level 0: m0 m1 m2

Backward runs a level again for one micro-batch at a time, so only one has its activations in
memory, besides the values that all keep between levels (`statistics_levels.py`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax

from millrace._compat.jaxpr import Graph, Var, as_function, is_literal, spec_of
from millrace.errors import UnsupportedError
from millrace.plan import MAX_UNROLLED_EQUATIONS
from millrace.steps.accumulate import Gradients
from millrace.steps.merged_statistics import AddUp, MicroStatistics
from millrace.steps.statistics_levels import StatisticsLevels, is_inexact

# (numbers of values, their values, number of the micro-batch) -> values
BeginState: TypeAlias = Callable[[Sequence[int], list[jax.Array], jax.Array], list[jax.Array]]
# (numbers, values before, values after, number of the micro-batch) -> values that go on
EndState: TypeAlias = Callable[
    [Sequence[int], list[jax.Array], list[jax.Array], jax.Array], list[jax.Array]
]


@dataclass(frozen=True, slots=True)
class EqualBatches:
    """Micro-batches of equal shapes, one after the other.

    Attributes:
        levels: of a forward for this shape.
        inputs: the other inputs of its graph but for the batch, by variable.
        batch: returns the leaves of a micro-batch, by variable.
        count: number of micro-batches.
        seeds: `[count]`: the weight of each loss in that of the update.
        active: `[count]`: whether a replica has the micro-batch; None if it has all.
        begin: turns values of the state into those with which a micro-batch begins.
        end: chooses those that go on.
    """

    levels: StatisticsLevels
    inputs: dict[Var, jax.Array]
    batch: Callable[[jax.Array], dict[Var, jax.Array]]
    count: int
    seeds: jax.Array
    active: jax.Array | None
    begin: BeginState
    end: EndState


class UpdateResult(NamedTuple):
    """The values that an update computes."""

    gradients: Gradients
    changing: list[jax.Array]  # values of the state that micro-batches change
    outputs: list[list[jax.Array]]  # of each of the equal batches, `[count, ...]`
    states: list[dict[int, jax.Array]]  # after each micro-batch, `[count, ...]`


class SynchronizedUpdate:
    """Runs one update within a program."""

    def __init__(
        self,
        batches: Sequence[EqualBatches],
        weights: Sequence[jax.Array],
        changing: Sequence[jax.Array],
        add_up: AddUp,
        unroll: bool,
    ):
        """Takes the arguments of an update.

        Args:
            batches: all micro-batches, in order.
            weights: trainable values.
            changing: values of the state that micro-batches may change, before the update.
            add_up: adds up values over replicas.
            unroll: whether to copy the code of micro-batches, if it is short, and not to loop.

        Raises:
            UnsupportedError: if batches of different shapes have different layers.
        """
        self._batches, self._weights = list(batches), list(weights)
        self._changing, self._add_up = list(changing), add_up
        # Forward, forward again, and backward: a copy of each for every micro-batch.
        equations = 3 * sum(each.count * len(each.levels.graph.equations) for each in batches)
        self._unroll = unroll and equations <= MAX_UNROLLED_EQUATIONS
        first = batches[0].levels
        self._num_levels = first.num_levels
        self._loss_level = first.level(first.loss)
        for each in batches:
            levels = each.levels
            same = levels.num_levels == first.num_levels and all(
                levels.merges_at(k) == first.merges_at(k) and levels.carried(k) == first.carried(k)
                for k in range(first.num_levels)
            )
            if not same:
                raise UnsupportedError(
                    "A smaller batch goes through other BatchNormalization layers than a full one, "
                    "so the two cannot share statistics. Leave out synchronized_batch_statistics, "
                    "or let the rows be a multiple of the batch size."
                )
        # Values by variable of each graph: those all micro-batches share, and [count, ...].
        self._shared = [
            {
                **each.inputs,
                **dict(zip(each.levels.weights, self._weights, strict=True)),
                **dict(zip(each.levels.before, self._changing, strict=True)),
            }
            for each in self._batches
        ]
        self._stacked: list[dict[Var, jax.Array]] = [{} for _ in self._batches]
        self._statistics: dict[int, MicroStatistics] = {}
        self._merged: dict[int, tuple[jax.Array, jax.Array, jax.Array]] = {}

    def run(self, accumulators: Gradients) -> UpdateResult:
        """Runs the update; `accumulators` are zeros to which gradients are added."""
        carried: dict[int, jax.Array] = {}
        outputs: list[dict[int, jax.Array]] = [{} for _ in self._batches]
        states: list[dict[int, jax.Array]] = [{} for _ in self._batches]
        cotangents = _Cotangents(list(accumulators), {}, [{} for _ in self._batches])
        for level in range(self._num_levels):
            numbers = self._batches[0].levels.carried(level)
            values = [self._changing[k] for k in numbers]
            statistics: list[list[jax.Array]] = []
            for index, each in enumerate(self._batches):
                result = self._forward(index, level, values, cotangents)
                values = result.carried
                outputs[index].update(
                    zip(each.levels.outputs_at(level), result.outputs, strict=True)
                )
                states[index].update(zip(numbers, result.states, strict=True))
                self._stacked[index].update(zip(each.levels.kept(level), result.kept, strict=True))
                statistics.append(result.statistics)
            carried.update(zip(numbers, values, strict=True))
            self._merge(level, statistics)
        for level in reversed(range(self._loss_level)):
            self._seed_statistics(level, cotangents)
            for index in range(len(self._batches)):
                self._backward(index, level, cotangents)
        changing = [carried.get(k, value) for k, value in enumerate(self._changing)]
        levels = self._batches[0].levels
        for k, value in zip(
            levels.merged_once, self._run(0, levels.after_update(), {}), strict=True
        ):
            changing[k] = value
        return UpdateResult(
            cotangents.weights,
            changing,
            [[found[k] for k in range(len(found))] for found in outputs],
            states,
        )

    def _run(self, index: int, graph: Graph, values: dict[Var, jax.Array]) -> list[jax.Array]:
        shared = self._shared[index]
        return as_function(graph)(
            *(values[var] if var in values else shared[var] for var in graph.invars)
        )

    def _forward(
        self, index: int, level: int, carried: list[jax.Array], cotangents: "_Cotangents"
    ) -> "_LevelResult":
        """Runs a level of some equal batches; the level of the loss backward, too."""
        each, levels = self._batches[index], self._batches[index].levels
        numbers, kept = levels.carried(level), levels.kept(level)
        outputs = [levels.outputs[k] for k in levels.outputs_at(level)]
        moments = [a for k in levels.merges_at(level) for a in levels.merges[k].invars]
        news = [levels.after[k] for k in numbers]
        has_loss = level == self._loss_level
        first = [levels.loss] if has_loss else []
        # In backward a level begins with the values with which it began in forward.
        begun = [levels.before[k] for k in numbers]
        graph = levels.body(level, [*first, *moments, *kept, *outputs, *news], with_prints=True)
        differentiated = self._differentiated(index, graph) if has_loss else []
        stored = [var for var in graph.invars if var in self._stacked[index]]
        olds = self._begin_of_backward(index, level)

        def body(
            carry: tuple[list[jax.Array], list[jax.Array]], xs: tuple[jax.Array, list[jax.Array]]
        ) -> Any:
            values, sums = carry
            number, items = xs
            start = each.begin(numbers, values, number)
            env = {**each.batch(number), **dict(zip(begun, start, strict=True))}
            env.update(zip(stored, items, strict=True))

            def run(chosen: list[jax.Array]) -> Any:
                all_values = {**env, **dict(zip(differentiated, chosen, strict=True))}
                results = self._run(index, graph, all_values)
                return (results[0], results[1:]) if has_loss else (None, results)

            news_found: list[jax.Array]
            of_kept: list[jax.Array] = []
            if has_loss:
                at = [env[v] if v in env else self._shared[index][v] for v in differentiated]
                loss, pull, results = jax.vjp(run, at, has_aux=True)
                (found,) = pull(each.seeds[number].astype(loss.dtype))
                found = self._only_active(index, found, number)
                sums, of_kept = self._added(index, differentiated, sums, found)
            else:
                _, results = run([])
            size = len(moments) + len(kept) + len(outputs)
            news_found = each.end(numbers, values, results[size:], number)
            starts = [env[var] for var in olds]
            return (news_found, sums), (results[:size], news_found, of_kept, starts)

        sums = self._open(index, differentiated, cotangents)
        xs = (jnp.arange(each.count), [self._stacked[index][var] for var in stored])
        (carried, sums), (found, states, of_kept, starts) = self._scan(
            body, (carried, sums), xs, each.count
        )
        self._close(index, differentiated, sums, of_kept, cotangents)
        self._stacked[index].update(zip(olds, starts, strict=True))
        a, b = len(moments), len(moments) + len(kept)
        return _LevelResult(carried, found[:a], found[a:b], found[b:], states)

    def _begin_of_backward(self, index: int, level: int) -> list[Var]:
        """Returns the values of the state with which backward of a level begins, not yet kept."""
        levels = self._batches[index].levels
        if level >= self._loss_level:
            return []
        moments = [a for k in levels.merges_at(level) for a in levels.merges[k].invars[:2]]
        graph = levels.body(level, [*moments, *levels.kept(level)])
        begun = {levels.before[k] for k in levels.carried(level)}
        return [v for v in graph.invars if v in begun and v not in levels.kept(level)]

    def _backward(self, index: int, level: int, cotangents: "_Cotangents") -> None:
        """Runs a level again for each micro-batch, and backward."""
        each, levels = self._batches[index], self._batches[index].levels
        of_values = cotangents.stacked[index]
        ends = [v for v in levels.kept(level) if v in of_values]
        ends += [
            atom
            for k in levels.merges_at(level)
            for atom in levels.merges[k].invars[:2]
            if not is_literal(atom) and atom in of_values and atom not in ends
        ]
        if not ends:
            return
        graph = levels.body(level, ends)
        differentiated = self._differentiated(index, graph)
        if not differentiated:
            return
        stacked = self._stacked[index]
        stored = [var for var in graph.invars if var in stacked]

        def body(sums: list[jax.Array], xs: tuple[jax.Array, list[Any], list[Any]]) -> Any:
            number, items, given = xs
            env = {**each.batch(number), **dict(zip(stored, items, strict=True))}

            def run(chosen: list[jax.Array]) -> list[jax.Array]:
                all_values = {**env, **dict(zip(differentiated, chosen, strict=True))}
                return self._run(index, graph, all_values)

            at = [env[v] if v in env else self._shared[index][v] for v in differentiated]
            _, pull = jax.vjp(run, at)
            (found,) = pull(given)
            found = self._only_active(index, found, number)
            return self._added(index, differentiated, sums, found)

        sums = self._open(index, differentiated, cotangents)
        given = [of_values.pop(var) for var in ends]
        xs = (jnp.arange(each.count), [stacked[var] for var in stored], given)
        sums, of_kept = self._scan(body, sums, xs, each.count)
        self._close(index, differentiated, sums, of_kept, cotangents)

    def _scan(self, body: Callable[..., Any], carry: Any, xs: Any, count: int) -> Any:
        return lax.scan(body, carry, xs, length=count, unroll=count if self._unroll else 1)

    def _differentiated(self, index: int, graph: Graph) -> list[Var]:
        """Returns the inputs of a level that have gradients."""
        levels, stacked = self._batches[index].levels, self._stacked[index]
        weights = set(levels.weights)
        merged = {v for equation in levels.merges for v in equation.outvars}
        before = set(levels.before)
        return [
            v
            for v in graph.invars
            if is_inexact(v) and v not in before and (v in weights or v in merged or v in stacked)
        ]

    def _open(
        self, index: int, differentiated: Sequence[Var], cotangents: "_Cotangents"
    ) -> list[jax.Array]:
        """Returns the sums of cotangents so far of inputs that micro-batches share."""
        numbers = self._numbers(index)
        sums: list[jax.Array] = []
        for var in differentiated:
            if var in numbers.weights:
                sums.append(cotangents.weights[numbers.weights[var]])
            elif var in numbers.merged:
                spec = spec_of(var)
                so_far = cotangents.merged.get(numbers.merged[var])
                sums.append(jnp.zeros(spec.shape, spec.dtype) if so_far is None else so_far)
        return sums

    def _added(
        self,
        index: int,
        differentiated: Sequence[Var],
        sums: Sequence[jax.Array],
        found: Sequence[jax.Array],
    ) -> tuple[list[jax.Array], list[jax.Array]]:
        """Returns the sums with the cotangents of a micro-batch, and those of its own inputs."""
        numbers, left = self._numbers(index), iter(sums)
        new: list[jax.Array] = []
        own: list[jax.Array] = []
        for var, value in zip(differentiated, found, strict=True):
            if var in numbers.weights or var in numbers.merged:
                so_far = next(left)
                new.append(so_far + value.astype(so_far.dtype))
            else:
                own.append(value)
        return new, own

    def _close(
        self,
        index: int,
        differentiated: Sequence[Var],
        sums: Sequence[jax.Array],
        of_kept: Sequence[jax.Array],
        cotangents: "_Cotangents",
    ) -> None:
        """Stores the cotangents that a level has computed."""
        numbers, left, own = self._numbers(index), iter(sums), iter(of_kept)
        for var in differentiated:
            if var in numbers.weights:
                cotangents.weights[numbers.weights[var]] = next(left)
            elif var in numbers.merged:
                cotangents.merged[numbers.merged[var]] = next(left)
            else:
                cotangents.add(index, var, next(own))

    def _numbers(self, index: int) -> "_Numbers":
        levels = self._batches[index].levels
        merged = {
            var: (k, place)
            for k, equation in enumerate(levels.merges)
            for place, var in enumerate(equation.outvars)
        }
        return _Numbers({var: k for k, var in enumerate(levels.weights)}, merged)

    def _only_active(
        self, index: int, found: list[jax.Array], number: jax.Array
    ) -> list[jax.Array]:
        active = self._batches[index].active
        if active is None:
            return found
        # Not a product: padding may have gradients that are not finite.
        return [jnp.where(active[number], value, jnp.zeros_like(value)) for value in found]

    def _merge(self, level: int, statistics: Sequence[Sequence[jax.Array]]) -> None:
        """Takes the statistics at the end of a level over all micro-batches and replicas."""
        for place, k in enumerate(self._batches[0].levels.merges_at(level)):
            columns = [
                jnp.concatenate([found[3 * place + column] for found in statistics])
                for column in range(3)
            ]
            active = None
            if any(each.active is not None for each in self._batches):
                active = jnp.concatenate(
                    [
                        jnp.ones(each.count, bool) if each.active is None else each.active
                        for each in self._batches
                    ]
                )
            epsilon = self._batches[0].levels.merges[k].params["epsilon"]
            own = MicroStatistics.of(columns[0], columns[1], columns[2], active, epsilon)
            self._statistics[k], self._merged[k] = own, own.merged(self._add_up)
            for shared, each in zip(self._shared, self._batches, strict=True):
                shared.update(zip(each.levels.merges[k].outvars, self._merged[k][:2], strict=True))

    def _seed_statistics(self, level: int, cotangents: "_Cotangents") -> None:
        """Turns cotangents of the statistics of an update into those of its micro-batches."""
        for k in self._batches[0].levels.merges_at(level):
            found = [cotangents.merged.pop((k, place), None) for place in range(2)]
            if all(value is None for value in found):
                continue
            zeros = jnp.zeros_like(self._merged[k][0])
            given = self._add_up([zeros if value is None else value for value in found])
            own = self._statistics[k].cotangents(self._merged[k], *given)
            begin = 0
            for index, each in enumerate(self._batches):
                for atom, value in zip(each.levels.merges[k].invars, own, strict=False):
                    if not is_literal(atom):
                        cotangents.add(index, atom, value[begin : begin + each.count])
                begin += each.count


class _LevelResult(NamedTuple):
    carried: list[jax.Array]
    statistics: list[jax.Array]  # the following are [count, ...]
    kept: list[jax.Array]
    outputs: list[jax.Array]
    states: list[jax.Array]


class _Numbers(NamedTuple):
    weights: dict[Var, int]
    merged: dict[Var, tuple[int, int]]  # number of the statistics; 0 for the mean


@dataclass(slots=True)
class _Cotangents:
    weights: Gradients
    merged: dict[tuple[int, int], jax.Array]
    stacked: list[dict[Var, jax.Array]]  # of each of the equal batches, [count, ...]

    def add(self, index: int, var: Var, value: jax.Array) -> None:
        of_values = self.stacked[index]
        of_values[var] = of_values[var] + value if var in of_values else value
