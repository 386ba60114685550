"""A traced step or stage, cut at its boundaries into segments that can be run again.

In a trace each is an equation `name` per value, which computes nothing.

    equation        follows from            level, with boundaries at x and y
    a = f(w0, x0)   weights and batch       0
    x = name(a)     boundary                1 from here on
    m = mask(seed)  no weight               that of the first equation that needs it
    c = g(w1, x)    weights and batch       1
    y = name(c)     boundary                2 from here on

What follows from weights alone, a cast, or from no weight at all, a slice of the batch, is made
where it is first needed: made earlier, it would have to be kept from there.
"""

import itertools
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from millrace._compat.jaxpr import Equation, Graph, Var, is_literal, renamed, variables
from millrace.threads.scoped_value import ScopedValue

_PREFIX = "mr.boundary."
_numbers = itertools.count()


def mark_boundary(tensors: Any) -> Any:
    """Returns a structure of arrays unchanged, all of which one boundary marks."""
    name = f"{_PREFIX}{next(_numbers)}"
    found = _found.get()
    if found is not None:
        found.append(name)
    return jax.tree.map(lambda leaf: checkpoint_name(leaf, name), tensors)


def boundary_of(equation: Equation) -> str | None:
    """Returns the name of the boundary that an equation marks, None if it marks none."""
    if equation.primitive.name != "name":
        return None
    name = equation.params["name"]
    return name if name.startswith(_PREFIX) else None


def without_boundaries(graph: Graph) -> Graph:
    """Returns `graph` as it would be without marks.

    A marked value has another name than the same value before its mark: where nothing runs again,
    backward might keep both.
    """
    names: dict[Var, Any] = {}
    equations = []
    for equation in graph.equations:
        if boundary_of(equation) is None:
            equations.append(equation)
        else:
            (marked,), (result,) = equation.invars, equation.outvars
            names[result] = marked if is_literal(marked) else names.get(marked, marked)
    plain = Graph(graph.invars, graph.outvars, tuple(equations), graph.constants)
    return renamed(plain, names, {}) if names else graph


_found = ScopedValue[list[str] | None](None)


@contextmanager
def boundaries_found() -> Iterator[list[str]]:
    """Yields a list that fills with the names of the boundaries that are marked inside."""
    found: list[str] = []
    with _found.bound_to(found):
        yield found


@dataclass(frozen=True, slots=True)
class Segments:
    """A graph in parts, to be run in order."""

    graph: Graph
    parts: tuple[tuple[Equation, ...], ...]
    learns: frozenset[Var]  # what a weight could change, of a floating type
    answered: frozenset[Var]  # through which it could change the targets

    def inputs(self, begin: int, end: int) -> list[Var]:
        """Returns what the parts from `begin` to before `end` take of what is made elsewhere."""
        inside = [equation for part in self.parts[begin:end] for equation in part]
        made = {var for equation in inside for var in equation.outvars}
        taken = dict.fromkeys(var for e in inside for var in variables(e.invars))
        return [var for var in taken if var not in made and var not in self.graph.constants]

    def outputs(self, begin: int, end: int) -> list[Var]:
        """Returns what they make that later parts take, or that the whole graph returns."""
        after = [equation for part in self.parts[end:] for equation in part]
        taken = {var for equation in after for var in variables(equation.invars)}
        taken.update(variables(self.graph.outvars))
        inside = [equation for part in self.parts[begin:end] for equation in part]
        return [var for equation in inside for var in equation.outvars if var in taken]

    def part(self, begin: int, end: int) -> Graph:
        """Returns the parts from `begin` to before `end` as one graph."""
        equations = tuple(equation for part in self.parts[begin:end] for equation in part)
        taken = {var for equation in equations for var in variables(equation.invars)}
        return Graph(
            tuple(self.inputs(begin, end)),
            tuple(self.outputs(begin, end)),
            equations,
            {var: value for var, value in self.graph.constants.items() if var in taken},
        )


def cut(
    graph: Graph, weights: Collection[Var], targets: Collection[Var], levels: Sequence[int]
) -> Segments:
    """Cuts a graph.

    Args:
        graph: of a forward.
        weights: those of its inputs that something is differentiated by.
        targets: those of its results that are differentiated.
        levels: of each equation, as `levels_by_boundaries` returns them.
    """
    parts: list[list[Equation]] = [[] for _ in range(max(levels, default=0) + 1)]
    for equation, level in zip(graph.equations, levels, strict=True):
        parts[level].append(equation)
    learns = _learns(graph, weights)
    answered = set(variables(targets))
    for equation in reversed(graph.equations):
        if any(var in answered for var in equation.outvars):
            answered.update(variables(equation.invars))
    return Segments(
        graph, tuple(map(tuple, parts)), frozenset(learns), frozenset(answered & learns)
    )


def levels_by_boundaries(graph: Graph, weights: Collection[Var]) -> list[int]:
    """Returns for each equation how many boundaries lie before it; all 0 without any."""
    mixed = follows_from_both(graph, weights)
    level: dict[Var, int] = {}
    reached: dict[str, int] = {}  # the level that a boundary begins
    levels: list[int | None] = []
    groups = _boundaries(graph)
    for equation, is_mixed in zip(graph.equations, mixed, strict=True):
        name = boundary_of(equation)
        own = max((level[var] for var in variables(equation.invars) if var in level), default=0)
        if name is not None and is_mixed:
            if name not in reached:  # all values of a boundary begin the same level
                taken = (var for e in groups[name] for var in variables(e.invars))
                reached[name] = max((level[var] for var in taken if var in level), default=0) + 1
            own = reached[name]
        levels.append(own if is_mixed else None)
        if is_mixed:
            level.update(dict.fromkeys(equation.outvars, own))
    return dense(pulled(graph, levels))


def follows_from_both(graph: Graph, weights: Collection[Var]) -> list[bool]:
    """Returns for each equation whether it follows from weights and from something else."""
    weighty, other = set(weights), set(graph.invars) - set(weights)
    both: list[bool] = []
    for equation in graph.equations:
        inputs = list(variables(equation.invars))
        from_weights = any(var in weighty for var in inputs)
        from_others = any(var in other for var in inputs)
        weighty.update(equation.outvars if from_weights else ())
        other.update(equation.outvars if from_others else ())
        both.append(from_weights and from_others)
    return both


def pulled(graph: Graph, levels: Sequence[int | None]) -> list[int]:
    """Returns levels in which an equation without one has that of the first that needs it."""
    needed: dict[Var, int] = {}
    settled: list[int] = []
    last = max((level for level in levels if level is not None), default=0)
    for equation, level in zip(reversed(graph.equations), reversed(levels), strict=True):
        if level is None:
            level = min((needed[v] for v in equation.outvars if v in needed), default=last)
        settled.append(level)
        for var in variables(equation.invars):
            needed[var] = min(level, needed.get(var, level))
    return settled[::-1]


def dense(levels: Sequence[int]) -> list[int]:
    """Returns levels without gaps."""
    order = {level: place for place, level in enumerate(sorted(set(levels)))}
    return [order[level] for level in levels]


def _boundaries(graph: Graph) -> dict[str, list[Equation]]:
    groups: dict[str, list[Equation]] = {}
    for equation in graph.equations:
        name = boundary_of(equation)
        if name is not None:
            groups.setdefault(name, []).append(equation)
    return groups


def _learns(graph: Graph, weights: Collection[Var]) -> set[Var]:
    learns = set(weights)
    for equation in graph.equations:
        if any(var in learns for var in variables(equation.invars)):
            learns.update(
                var for var in equation.outvars if jnp.issubdtype(var.aval.dtype, jnp.inexact)
            )
    return learns
