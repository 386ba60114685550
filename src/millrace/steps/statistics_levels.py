"""The forward of one micro-batch, cut where it needs statistics of all micro-batches.

    level 0     x -> Dense -> h1                          mean and variance of h1
    level 1     h1 -> normalized -> Dense -> h2           mean and variance of h2
    level 2     h2 -> normalized -> Dense -> loss

The level of a value is the number of statistics that it depends on, one after the other. A level
runs for all micro-batches before the next one begins. Values that a later level needs (h1, h2)
are kept for every micro-batch, and everything else is computed again.

A value varies if it may differ between micro-batches. The statistics do not, nor what follows from
them and from the weights alone, such as new moving averages: it is computed once per update.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import jax.numpy as jnp

from millrace._compat.batch_moments import contains_moments, marks_moments
from millrace._compat.jaxpr import (
    Atom,
    Equation,
    Graph,
    Var,
    inlined,
    inner_equations,
    is_literal,
    scope,
    spec_of,
    used,
    variables,
    with_effects,
)
from millrace.errors import UnsupportedError

ARGUMENT = "synchronized_batch_statistics=True"

# Equations that take less time than reading a kept value takes memory: what follows from kept
# values by a few of them is not kept.
_CHEAP = frozenset(
    [
        "abs",
        "add",
        "add_any",
        "and",
        "broadcast_in_dim",
        "clamp",
        "concatenate",
        "convert_element_type",
        "copy",
        "copy_p",
        "div",
        "eq",
        "erf",
        "exp",
        "expand_dims",
        "expm1",
        "floor",
        "ge",
        "gt",
        "integer_pow",
        "is_finite",
        "iota",
        "le",
        "log",
        "log1p",
        "logistic",
        "lt",
        "max",
        "min",
        "mul",
        "name",
        "ne",
        "neg",
        "not",
        "or",
        "pow",
        "reshape",
        "rsqrt",
        "select_n",
        "sign",
        "slice",
        "sqrt",
        "square",
        "squeeze",
        "sub",
        "tanh",
        "transpose",
    ]
)
_LONGEST = 32  # equations that are computed again in place of a kept value


@dataclass(frozen=True, slots=True)
class ForwardParts:
    """A traced forward, and the meaning of its inputs and results.

    `before` and `after` are the values of the state that a micro-batch may change: one replaces the
    other in the order of the model's variables.
    """

    graph: Graph
    weights: tuple[Var, ...]
    before: tuple[Var, ...]
    after: tuple[Atom, ...]
    loss: Atom
    outputs: tuple[Atom, ...]  # of each micro-batch: logs and taps


class StatisticsLevels:
    """The levels of one forward."""

    def __init__(self, parts: ForwardParts, model: str):
        """Cuts a forward.

        Args:
            parts: traced with marked statistics.
            model: its name, for errors.

        Raises:
            UnsupportedError: if statistics are needed in a loop or in a conditional, or if one
                micro-batch can begin only after another has ended.
        """
        graph = inlined(parts.graph, contains_moments)
        # Inlining gives results of calls other variables.
        size = len(parts.graph.outvars)
        atoms = dict(zip(map(id, parts.graph.outvars), range(size), strict=True))
        replace = [graph.outvars[atoms[id(a)]] for a in (*parts.after, parts.loss, *parts.outputs)]
        self.graph, self.weights, self.before = graph, parts.weights, parts.before
        self.after = tuple(replace[: len(parts.after)])
        self.loss = replace[len(parts.after)]
        self.outputs = tuple(replace[len(parts.after) + 1 :])
        self._model = model
        for equation in graph.equations:
            if not marks_moments(equation) and contains_moments(equation):
                raise UnsupportedError(
                    f"The model {model!r} has a BatchNormalization within "
                    f"{equation.primitive.name!r} (in {scope(equation)!r}), and {ARGUMENT} needs "
                    "its statistics from outside. Take it out of the loop, the conditional or the "
                    "custom gradient, or leave the option out."
                )
        self.merges = [e for e in graph.equations if marks_moments(e)]
        self._merged = {v for e in self.merges for v in e.outvars}
        self._changed = {
            k: (b, a)
            for k, (b, a) in enumerate(zip(self.before, self.after, strict=True))
            if a is not b
        }
        self._level: dict[Var, int] = {}
        self._varying: set[Var] = set()
        self._carried: dict[int, int] = {}  # changed values, with the level that changes them
        self._find_levels()
        ends: list[Atom] = [self.loss, *self.outputs, *(self.after[k] for k in self._carried)]
        ends += [atom for equation in self.merges for atom in equation.invars]
        self.num_levels = 1 + max((self.level(atom) for atom in ends), default=0)
        self._kept = self._find_kept()

    def level(self, atom: Atom) -> int:
        """Returns the level of a value; that of literals and inputs is 0."""
        return 0 if is_literal(atom) else self._level.get(atom, 0)

    def merges_at(self, level: int) -> list[int]:
        """Returns the numbers of the statistics that a level ends with."""
        return [k for k, e in enumerate(self.merges) if self._merge_level(e) == level]

    def carried(self, level: int) -> list[int]:
        """Returns the values of the state that each micro-batch changes in a level."""
        return [k for k, at in self._carried.items() if at == level]

    def kept(self, level: int) -> list[Var]:
        """Returns the values of a level that later levels need of every micro-batch."""
        return [var for var in self._kept if self._level[var] == level]

    def outputs_at(self, level: int) -> list[int]:
        """Returns the numbers of the outputs of a level."""
        return [k for k, atom in enumerate(self.outputs) if self.level(atom) == level]

    @property
    def merged_once(self) -> list[int]:
        """The values of the state that follow from the statistics of all micro-batches."""
        return [k for k in self._changed if k not in self._carried]

    def body(self, level: int, outvars: Sequence[Atom], with_prints: bool = False) -> Graph:
        """Returns the equations of a level from which values follow.

        Args:
            level: a number.
            outvars: values of this level, or of those before.
            with_prints: whether to keep equations that have effects besides their results.
        """
        inputs = [var for var in self._kept if self._level[var] < level]
        effects = with_effects(self.graph) if with_prints else []
        also = [e for e in effects if max(map(self.level, e.invars), default=0) == level]
        return used(self.graph, outvars, [*self._merged_in_order(), *inputs], also)

    def after_update(self) -> Graph:
        """Returns the equations of the values that are merged once."""
        outvars = [self.after[k] for k in self.merged_once]
        return used(self.graph, outvars, self._merged_in_order())

    def _merged_in_order(self) -> Iterator[Var]:
        return (var for equation in self.merges for var in equation.outvars)

    def _merge_level(self, equation: Equation) -> int:
        return max(map(self.level, equation.invars), default=0)

    def _find_levels(self) -> None:
        """Finds which values vary, and the levels of all.

        A value that micro-batches change in turn is at the level that changes it, which may depend
        on it: levels rise until they agree.
        """
        weights, befores = set(self.weights), set(self.before)
        batch = {v for v in self.graph.invars if v not in weights and v not in befores}
        self._assign(batch, {})
        once = {k for k, (_, after) in self._changed.items() if self.level(after) > 0}
        while True:
            self._carried = {k: 0 for k in self._changed if k not in once}
            for _ in range(len(self.merges) + 2):
                self._assign(batch, {self.before[k]: at for k, at in self._carried.items()})
                found = {k: self.level(self.after[k]) for k in self._carried}
                if found == self._carried:
                    break
                self._carried = found
            else:
                raise UnsupportedError(
                    f"The model {self._model!r} has a variable that each micro-batch changes by "
                    "values that follow from its BatchNormalization, and that other layers read "
                    f"before it. With {ARGUMENT}, all micro-batches are normalized together. Leave "
                    "the option out, or make the variable constant in training."
                )
            varies = {k for k in once if self.after[k] in self._varying}
            if not varies:
                return
            once -= varies

    def _assign(self, batch: AbstractSet[Var], carried: dict[Var, int]) -> None:
        self._level, self._varying = dict(carried), {*batch, *carried}
        for equation in self.graph.equations:
            level = max(map(self.level, equation.invars), default=0)
            varies = any(var in self._varying for var in variables(equation.invars))
            for out in equation.outvars:
                self._level[out] = level + marks_moments(equation)
                if varies and not marks_moments(equation):
                    self._varying.add(out)

    def _find_kept(self) -> list[Var]:
        """Returns the values that cross levels, in order, as few bytes as is easily found."""
        makers = {out: e for e in self.graph.equations for out in e.outvars}
        carried = {self.before[k] for k in self._carried}
        order = {var: k for k, var in enumerate((*self.graph.invars, *makers))}

        def can_be_kept(var: Var) -> bool:
            return var in self._varying and (var in makers or var in carried)

        kept: set[Var] = set()
        for level in range(1, self.num_levels):
            seen: set[Var] = set()
            pending = list(variables(self._ends(level)))
            while pending:
                var = pending.pop()
                if var in seen or var in self._merged:
                    continue
                seen.add(var)
                if can_be_kept(var) and self._level[var] < level:
                    kept.add(var)
                elif var in makers:
                    pending.extend(variables(makers[var].invars))
        for var in sorted(kept, key=order.__getitem__):
            if var in makers and is_cheap(makers[var]):
                inputs = self._computed_from(var, kept, makers, can_be_kept)
                if inputs is not None and sum(map(nbytes, inputs)) < nbytes(var):
                    kept.discard(var)
                    kept |= inputs
        return sorted(kept, key=order.__getitem__)

    def _ends(self, level: int) -> list[Atom]:
        """Returns the results of a level but for those that are kept."""
        ends: list[Atom] = [self.outputs[k] for k in self.outputs_at(level)]
        ends += [self.after[k] for k in self.carried(level)]
        ends += [atom for k in self.merges_at(level) for atom in self.merges[k].invars]
        return [*ends, self.loss] if self.level(self.loss) == level else ends

    def _computed_from(
        self,
        var: Var,
        kept: AbstractSet[Var],
        makers: dict[Var, Equation],
        can_be_kept: Callable[[Var], bool],
    ) -> set[Var] | None:
        """Returns values to keep in place of one, from which a few cheap equations compute it."""
        inputs: set[Var] = set()
        run: set[int] = set()
        pending = [var]
        while pending:
            equation = makers[pending.pop()]
            if id(equation) in run:
                continue
            run.add(id(equation))
            if len(run) > _LONGEST:
                return None
            for each in variables(equation.invars):
                if each in kept or each not in self._varying:
                    continue
                if each in makers and is_cheap(makers[each]):
                    pending.append(each)
                elif can_be_kept(each):
                    inputs.add(each)
        return inputs


def is_cheap(equation: Equation) -> bool:
    """Whether an equation may be computed again for the sake of memory."""
    if equation.primitive.name == "custom_jvp_call":
        return all(is_cheap(e) for body in inner_equations(equation) for e in body)
    if equation.primitive.name in ("jit", "pjit"):  # within a custom_jvp_call
        return all(is_cheap(e) for body in inner_equations(equation) for e in body)
    return equation.primitive.name in _CHEAP


def nbytes(var: Var) -> int:
    """Returns the bytes of a value of one micro-batch."""
    spec = spec_of(var)
    return math.prod(spec.shape) * spec.dtype.itemsize


def is_inexact(var: Var) -> bool:
    """Whether a value has gradients."""
    return jnp.issubdtype(spec_of(var).dtype, jnp.inexact)
